// Reads and limits the memory of this process. Memory that its ranks share does not count in the
// limit.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstddef>
#include <fstream>
#include <string>

namespace lockstep::test {

// Returns the bytes of a field of /proc/self/status, such as "VmData".
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

// While it exists, this process may allocate only this many more bytes of private writable
// mappings, touched or not (RLIMIT_DATA). Stacks of threads count.
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
