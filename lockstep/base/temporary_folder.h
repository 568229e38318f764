// A folder of this process, in that of TMPDIR or in /tmp. It is removed, with all that is in it,
// when this object goes. Only its user can read it.
//
// Errors: system, naming the folder, if it cannot be made. One that cannot be removed stays.

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
