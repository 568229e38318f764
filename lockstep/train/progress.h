// Displays a training's progress on stderr.
//
//   lockstep::Progress progress(steps, {.enabled = world.rank() == 0, .label = "epoch 1/5"});
//   ...
//     progress.step(batch.data.size(0) * world.size(), loss.item<double>());
//
// Redraws one line at most ten times a second on a terminal; writes a line every five seconds
// elsewhere. The line ends with this rank's recent waits for data and other ranks: "data 3 %, wait
// 5 % for rank 3". The last line covers the whole loop. `lockstep run` sets
// LOCKSTEP_TERMINAL=<columns> if it writes to a terminal.
//
// Thread safety: none. Errors: misuse. Write errors are ignored.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/api.h"

namespace lockstep {

struct ProgressOptions {
  bool enabled = true;     // On one rank; elsewhere step() costs nothing.
  std::string label = {};  // Start of each line.
  int fd = STDERR_FILENO;  // Output.
  std::int64_t done = 0;   // Steps of earlier runs of a resumed training.
};

class LOCKSTEP_API Progress {
 public:
  explicit Progress(std::int64_t total_steps, ProgressOptions options = {});
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `samples`: of all ranks together.
  void step(std::int64_t samples, std::optional<double> loss = std::nullopt);

 private:
  struct State;
  using Clock = std::chrono::steady_clock;

  void draw(Clock::time_point now, bool last);
  int columns() const;

  const int fd_;
  const bool on_terminal_;
  const Clock::time_point started_;
  Clock::time_point drawn_;
  const std::unique_ptr<State> state_;
  bool ended_;
  std::size_t width_ = 0;  // Width of the terminal's text.
};

}  // namespace lockstep
