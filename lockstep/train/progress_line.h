// What a progress display says: text alone, no clock and no terminal.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/base/api.h"

namespace lockstep {

struct ProgressState {
  std::string label = {};
  std::int64_t steps = 0;
  std::int64_t total_steps = 0;
  std::int64_t earlier_steps =
      0;                     // Of `steps`, those of an earlier run: no time was taken of them.
  std::int64_t samples = 0;  // Of all ranks; 0 when nobody counts them: the rate is then in steps.
  std::chrono::duration<double> elapsed{0};
  std::optional<double> loss = {};  // The latest.
};

// Such as "epoch 1/5: 394/938 steps (42%), 12300 samples/s, loss 0.4123, 0:23 left".
LOCKSTEP_API std::string progress_line(const ProgressState& state);

// Such as "epoch 1/5  42% [#######.........] 394/938, 12300 samples/s, loss 0.4123, 0:23 left",
// less than `columns` wide, so that a terminal does not wrap it: the bar goes first, then the end.
LOCKSTEP_API std::string progress_bar(const ProgressState& state, int columns);

}  // namespace lockstep
