// A folder in TMPDIR or /tmp that only this user can read. The destructor removes it with its
// contents.
//
// Errors: system, naming the folder, if it cannot be created. If the removal fails, it stays.

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
