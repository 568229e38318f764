// Growth of this process's memory, from construction to its peak or until now.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

class PeakMemory {
 public:
  // Resets the peak that Linux has recorded.
  PeakMemory() {
    std::ofstream("/proc/self/clear_refs") << "5";
    before_ = read("VmRSS:");
  }

  // Return bytes.
  std::int64_t growth() const { return read("VmHWM:") - before_; }
  std::int64_t growth_now() const { return read("VmRSS:") - before_; }

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
