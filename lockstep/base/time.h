// Deadlines and timeouts on the steady clock. Every wait in this library takes a deadline.
//
// A timeout of milliseconds::max() means no timeout.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

namespace lockstep {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

constexpr std::chrono::milliseconds default_timeout = std::chrono::minutes(5);

constexpr Deadline no_deadline = Deadline::max();

// no_deadline when `time` exceeds the clock's range, as milliseconds::max() does.
inline Deadline in(std::chrono::milliseconds time) {
  const auto now = Clock::now();
  const auto most = std::chrono::duration_cast<std::chrono::milliseconds>(no_deadline - now);
  return time < most ? now + time : no_deadline;
}

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The longest sleep between two checks for lost peers.
inline constexpr std::chrono::milliseconds wait_slice{20};

// After a longer slice, this process, and perhaps its peers, must have been stopped.
inline constexpr std::chrono::seconds unfair_slice{1};

// Shorter slices in a row before this process reports a peer as late.
inline constexpr int enough_slices = 5;

// No timeout stays no timeout.
constexpr std::chrono::milliseconds longer_by(std::chrono::milliseconds timeout,
                                              std::chrono::milliseconds more) {
  return timeout > std::chrono::milliseconds::max() - more ? std::chrono::milliseconds::max()
                                                           : timeout + more;
}

// Rounded up; 0 after the deadline.
inline std::chrono::milliseconds until(Deadline deadline) {
  if (deadline == no_deadline) return std::chrono::milliseconds::max();
  return std::max(std::chrono::milliseconds(0),
                  std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()));
}

}  // namespace lockstep
