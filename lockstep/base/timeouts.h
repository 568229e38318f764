// Arithmetic of timeouts. milliseconds::max() means no timeout.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

#include "lockstep/base/time.h"

namespace lockstep {

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
