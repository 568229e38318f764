// The text of a progress display.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::train {

struct ProgressState {
  std::string label = {};
  std::int64_t steps = 0;
  std::int64_t total_steps = 0;
  std::int64_t earlier_steps = 0;  // Made by earlier runs; `elapsed` excludes them.
  std::int64_t samples = 0;        // Over all ranks; 0 if not counted: the rate is then in steps.
  std::chrono::duration<double> elapsed{0};
  std::optional<double> loss = {};  // The latest value.
  std::string phases = {};          // Such as "data 3 %, wait 5 % for rank 3".
};

// Such as "epoch 1/5: 394/938 steps (42%), 12300 samples/s, loss 0.4123, 0:23 left, data 3 %".
std::string progress_line(const ProgressState& state);

// Such as "epoch 1/5 42% [#######.........] 394/938, 12300 samples/s, loss 0.4123, 0:23 left".
// Shorter than `columns`, so that a terminal does not wrap it. Drops the bar first, then cuts the
// end.
std::string progress_bar(const ProgressState& state, int columns);

}  // namespace lockstep::train
