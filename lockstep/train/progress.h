// Displays the progress of a training loop on stderr.
//
//   lockstep::Progress progress(steps, {.enabled = world.rank() == 0, .label = "epoch 1/5"});
//   ...
//     progress.step(batch.data.size(0) * world.size(), loss.item<double>());
//
// On a terminal, it redraws one line at most ten times a second; elsewhere, it writes a line every
// five seconds. The line ends with this rank's waits for data and other ranks in the last seconds:
// "data 3 %, wait 5 % for rank 3". The last line covers the whole loop. Under `lockstep run`,
// LOCKSTEP_TERMINAL=<columns> is set if the launcher writes to a terminal.
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
  bool enabled = true;     // Enable it on one rank; elsewhere step() costs nothing.
  std::string label = {};  // Start of each line.
  int fd = STDERR_FILENO;  // File descriptor to write to.
  std::int64_t done = 0;   // Steps already done by earlier runs of a resumed training.
};

class LOCKSTEP_API Progress {
 public:
  explicit Progress(std::int64_t total_steps, ProgressOptions options = {});
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Counts a step, in which all ranks together processed `samples`.
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
  std::size_t width_ = 0;  // Width of the text on the terminal's line.
};

}  // namespace lockstep
