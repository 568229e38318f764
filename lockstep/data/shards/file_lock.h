// The right to do something on this host's behalf: a lock on a file, which the kernel releases when
// the process ends in any way.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"

namespace lockstep::data {

class FileLock {
 public:
  // Returns nothing if another has the lock at `deadline`; asks once if that has passed.
  // Errors: system, naming the file.
  static std::optional<FileLock> take(FileDescriptor fd, const std::string& name,
                                      Deadline deadline);

  // The same, on a file that is created if necessary.
  static std::optional<FileLock> take(const std::string& path, Deadline deadline);

 private:
  explicit FileLock(FileDescriptor fd) : fd_(std::move(fd)) {}

  FileDescriptor fd_;
};

}  // namespace lockstep::data
