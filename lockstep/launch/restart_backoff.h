// Pause before a failed program is restarted.
//
// The first restart is at once. The pause before the next is a tenth of a second, and doubles with
// each further failure, up to a limit. After an attempt that lived as long as the limit, the next
// restart is at once again. So starts are, on average, at least that far apart.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include "lockstep/base/time.h"

namespace lockstep {

class RestartBackoff {
 public:
  // `longest` is the limit; 0 for no pauses at all.
  explicit RestartBackoff(std::chrono::milliseconds longest) : longest_(longest) {}

  // Returns the pause after an attempt that failed after `lived`.
  std::chrono::milliseconds after(Clock::duration lived) {
    if (lived >= longest_) next_ = none;
    return std::exchange(next_, std::clamp(2 * next_, std::min(shortest, longest_), longest_));
  }

 private:
  static constexpr std::chrono::milliseconds none{0};
  static constexpr std::chrono::milliseconds shortest{100};

  const std::chrono::milliseconds longest_;
  std::chrono::milliseconds next_ = none;
};

}  // namespace lockstep
