// The library's only output besides exceptions.
//
// LOCKSTEP_LOG sets the lowest level to print: error, warning (the default), info, debug or off.
// With another value, log() uses the default, and init_process_group() and the launcher fail.
// Thread safety: full, except SparseLog.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/base/time.h"

namespace lockstep {

enum class LogLevel { error, warning, info, debug };

// Receives messages without a newline; must not throw.
using LogSink = std::function<void(LogLevel level, std::string_view message)>;

// An empty function restores the default, stderr.
LOCKSTEP_API void set_log_sink(LogSink sink);

LOCKSTEP_API void log(LogLevel level, std::string_view message);

// Errors: misuse, listing the levels, if LOCKSTEP_LOG is none of them.
LOCKSTEP_API void require_known_log_level();

// Logs events that unauthenticated peers cause, at a limited rate. Thread safety: one thread only.
class SparseLog {
 public:
  explicit SparseLog(std::chrono::milliseconds interval) : interval_(interval) {}

  // Logs at most one warning per interval, with the number dropped since the last one.
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
