// Deadlines. Every wait in this library takes one. The wall clock is never used.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace lockstep {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

constexpr std::chrono::milliseconds default_timeout = std::chrono::minutes(5);

// Never passes. A wait without limit must be asked for by this name.
constexpr Deadline no_deadline = Deadline::max();

// Returns no_deadline when `time` exceeds the clock's range: milliseconds::max() asks for that.
inline Deadline in(std::chrono::milliseconds time) {
  const auto now = Clock::now();
  const auto most = std::chrono::duration_cast<std::chrono::milliseconds>(no_deadline - now);
  return time < most ? now + time : no_deadline;
}

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace lockstep
