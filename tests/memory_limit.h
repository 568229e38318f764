// Memory of this process: what it has, and a limit of its own. What its ranks share does not count
// in the limit.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstddef>
#include <fstream>
#include <string>

namespace lockstep::test {

// The bytes of a field of /proc/self/status, such as "VmData".
inline std::size_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == field + ':') {
      std::size_t kilobytes = 0;
      status >> kilobytes;
      return kilobytes << 10;
    }
  ADD_FAILURE() << "/proc/self/status has no " << field;
  return 0;
}

// While it lives, this process may have only so many bytes more in private writable mappings, with
// or without contents (RLIMIT_DATA). Threads' stacks count.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::size_t more) {
    EXPECT_EQ(::getrlimit(RLIMIT_DATA, &before_), 0);
    const rlimit limit{.rlim_cur = status_bytes("VmData") + more, .rlim_max = before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_DATA, &limit), 0);
  }
  ~MemoryLimit() { EXPECT_EQ(::setrlimit(RLIMIT_DATA, &before_), 0); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace lockstep::test
