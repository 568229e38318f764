// How much more memory this process has at its peak than it had at first.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

class PeakMemory {
 public:
  // Lets Linux forget the peak that there was.
  PeakMemory() {
    std::ofstream("/proc/self/clear_refs") << "5";
    before_ = read("VmRSS:");
  }

  // In bytes.
  std::int64_t growth() const { return read("VmHWM:") - before_; }

 private:
  static std::int64_t read(const std::string& name) {
    std::ifstream status("/proc/self/status");
    std::string word;
    std::int64_t kilobytes = 0;
    while (status >> word)
      if (word == name && status >> kilobytes) break;
    return kilobytes * 1024;
  }

  std::int64_t before_ = 0;
};
