// Displays the progress of a training loop on stderr.
//
//   lockstep::Progress progress(steps, {.enabled = world.rank() == 0, .label = "epoch 1/5"});
//   for (auto& batch : *loader) {
//     ...
//     progress.step(batch.data.size(0) * world.size(), loss.item<double>());
//   }
//
// On a terminal, it redraws one line at most ten times a second. Elsewhere, such as in a log, it
// writes a line every five seconds. Both end with the last step or in the destructor. The line ends
// with the share of time that this rank waited for data and for other ranks (job/step_times.h):
// "data 3 %, wait 5 % for rank 3". It covers the last seconds, and at the end the whole loop.
// `lockstep run` relays its ranks' output, and sets LOCKSTEP_TERMINAL=<columns> if it writes to a
// terminal.
//
// Thread safety: none.
// Errors: misuse. Write errors are ignored.

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
