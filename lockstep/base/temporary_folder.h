// A folder in TMPDIR or /tmp that only this user can read, removed by the destructor.
//
// Errors: system, naming the folder, if it cannot be created. A failed removal leaves the folder.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "lockstep/base/api.h"

namespace lockstep {

class LOCKSTEP_API TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  const std::filesystem::path path_;
};

}  // namespace lockstep
