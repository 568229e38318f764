// Arithmetic of timeouts, and how long waits sleep. milliseconds::max() means no timeout.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

#include "lockstep/base/time.h"

namespace lockstep {

// A wait sleeps for a slice at most before it looks for lost peers.
inline constexpr std::chrono::milliseconds wait_slice{20};

// A slice that took longer than this shows that this process was stopped: it blames nobody then.
inline constexpr std::chrono::seconds unfair_slice{1};

// Slices required before a peer counts as late.
inline constexpr int enough_slices = 5;

// Returns `timeout` + `more`; no timeout stays no timeout.
constexpr std::chrono::milliseconds longer_by(std::chrono::milliseconds timeout,
                                              std::chrono::milliseconds more) {
  return timeout > std::chrono::milliseconds::max() - more ? std::chrono::milliseconds::max()
                                                           : timeout + more;
}

// Returns the time left, rounded up; 0 after the deadline.
inline std::chrono::milliseconds until(Deadline deadline) {
  if (deadline == no_deadline) return std::chrono::milliseconds::max();
  return std::max(std::chrono::milliseconds(0),
                  std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()));
}

}  // namespace lockstep
