// Limits file sizes during its lifetime, as `ulimit -f` does.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>

#include "lockstep/base/error.h"

namespace lockstep::test {

class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    if (::getrlimit(RLIMIT_FSIZE, &before_) != 0) throw_errno("getrlimit");
    const rlimit low{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    if (::setrlimit(RLIMIT_FSIZE, &low) != 0) throw_errno("setrlimit");
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace lockstep::test
