// A limit of this process's own memory: what its ranks share does not count.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstddef>
#include <fstream>
#include <string>

namespace lockstep::test {

// While it lives, this process may have only so many bytes more in private writable mappings, with
// or without contents (RLIMIT_DATA). Threads' stacks count.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::size_t more) {
    EXPECT_EQ(::getrlimit(RLIMIT_DATA, &before_), 0);
    const rlimit limit{.rlim_cur = data_bytes() + more, .rlim_max = before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_DATA, &limit), 0);
  }
  ~MemoryLimit() { EXPECT_EQ(::setrlimit(RLIMIT_DATA, &before_), 0); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  static std::size_t data_bytes() {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;)
      if (word == "VmData:") {
        std::size_t kilobytes = 0;
        status >> kilobytes;
        return kilobytes << 10;
      }
    ADD_FAILURE() << "/proc/self/status has no VmData";
    return 0;
  }

  rlimit before_{};
};

}  // namespace lockstep::test
