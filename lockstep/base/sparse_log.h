// Logs events that strangers cause, at a limited rate, so that they cannot fill the log.
//
// Thread safety: one thread only.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "lockstep/base/log.h"
#include "lockstep/base/time.h"

namespace lockstep {

class SparseLog {
 public:
  explicit SparseLog(std::chrono::milliseconds interval) : interval_(interval) {}

  // Logs at most one warning per interval. It says how many others were dropped since the last one.
  void warn(std::string_view message) {
    if (Clock::now() < quiet_until_) {
      ++untold_;
      return;
    }
    std::string line(message);
    if (untold_ > 0) line += " (and " + std::to_string(untold_) + " like it since the last line)";
    untold_ = 0;
    quiet_until_ = in(interval_);
    log(LogLevel::warning, line);
  }

 private:
  const std::chrono::milliseconds interval_;
  Clock::time_point quiet_until_{};
  std::size_t untold_ = 0;
};

}  // namespace lockstep
