// Arithmetic of timeouts, of which milliseconds::max() stands for none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

#include "lockstep/base/time.h"

namespace lockstep {

// `timeout` and `more`; none stays none.
constexpr std::chrono::milliseconds longer_by(std::chrono::milliseconds timeout,
                                              std::chrono::milliseconds more) {
  return timeout > std::chrono::milliseconds::max() - more ? std::chrono::milliseconds::max()
                                                           : timeout + more;
}

// What is left, rounded up; 0 when it has passed.
inline std::chrono::milliseconds until(Deadline deadline) {
  if (deadline == no_deadline) return std::chrono::milliseconds::max();
  return std::max(std::chrono::milliseconds(0),
                  std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()));
}

}  // namespace lockstep
