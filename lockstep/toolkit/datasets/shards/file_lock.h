// A lock on a file of this host. The kernel releases it however the process ends.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"

namespace lockstep::datasets {

class FileLock {
 public:
  // Returns nothing if another process holds the lock until `deadline`; tries at least once.
  // Errors: system.
  static std::optional<FileLock> take(FileDescriptor fd, const std::string& name,
                                      Deadline deadline);

  // Creates the file if necessary.
  static std::optional<FileLock> take(const std::string& path, Deadline deadline);

 private:
  explicit FileLock(FileDescriptor fd) : fd_(std::move(fd)) {}

  FileDescriptor fd_;
};

}  // namespace lockstep::datasets
