// Shows on stderr how far a training loop is.
//
//   lockstep::Progress progress(steps, {.enabled = world.rank() == 0, .label = "epoch 1/5"});
//   for (auto& batch : *loader) {
//     ...
//     progress.step(batch.data.size(0) * world.size(), loss.item<double>());
//   }
//
// On a terminal it is one line that is drawn anew, ten times a second at the most; anywhere else,
// such as in a log, a line every five seconds. Both end with the last step, or with the object.
// `lockstep run` relays what its ranks write, and tells by LOCKSTEP_TERMINAL=<columns> that there
// is a terminal behind it.
//
// Thread safety: none.
// Errors: misuse; what cannot be written is not written.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/base/api.h"
#include "lockstep/train/progress_line.h"

namespace lockstep {

struct ProgressOptions {
  bool enabled = true;     // Let one rank show it; on the others step() costs nothing.
  std::string label = {};  // Comes first in each line.
  int fd = STDERR_FILENO;  // Where to write.
  std::int64_t done = 0;   // Steps, of all, that were made before, by a training that was resumed.
};

class LOCKSTEP_API Progress {
 public:
  explicit Progress(std::int64_t total_steps, ProgressOptions options = {});
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // One more step is done, in which all ranks together took `samples`.
  void step(std::int64_t samples, std::optional<double> loss = std::nullopt);

 private:
  using Clock = std::chrono::steady_clock;

  void draw(Clock::time_point now, bool last);
  int columns() const;

  const int fd_;
  const bool on_terminal_;
  const Clock::time_point started_;
  Clock::time_point drawn_;
  ProgressState state_;
  bool ended_;
  std::size_t width_ = 0;  // Of what stands on the terminal's line.
};

}  // namespace lockstep
