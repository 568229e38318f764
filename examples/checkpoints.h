// Checkpoints of the examples, as their options say, and a log of the samples that they train on.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "examples/command_line.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/train/training_state.h"

class Checkpoints {
 public:
  // `state` outlives it.
  Checkpoints(const Options& options, const lockstep::ProcessGroup& world,
              const lockstep::TrainingState& state);

  // As --resume says, if it does. Throws std::runtime_error when the folder has later checkpoints
  // than the training that begins here.
  void resume();

  // After each step, with the number of all that were made: whether the job has been told to make
  // room. All is saved then, and the rank should leave with lockstep::exit_preempted.
  bool make_room(std::int64_t step);

  // After each step: saves every --checkpoint-every.
  void after_step(std::int64_t step);

  // In the end: saves what was not, and waits until it is on the disk.
  void finish(std::int64_t step);

 private:
  void load();
  void require_newest() const;

  const Options& options_;
  const lockstep::ProcessGroup& world_;
  const lockstep::TrainingState& state_;
  std::optional<lockstep::Checkpointer> checkpointer_;
  std::int64_t saved_ =
      0;  // The step of the newest checkpoint; before the first nothing is worth one.
};

// The samples in a step, on all ranks together: those of the training that was resumed unless the
// command line has `wanted` others, which is then said on stderr.
std::int64_t global_batch_of(std::int64_t resumed, std::optional<std::int64_t> wanted,
                             const lockstep::ProcessGroup& world);

// What of them is this rank's. Throws std::runtime_error when ranks cannot have equally many.
std::size_t share_of(std::int64_t global_batch, const lockstep::ProcessGroup& world);

// How many steps the whole training has: --steps, or what is left of --epochs after `step`, in
// batches of so many samples. Those that are not full count unless they are left out. Throws
// std::runtime_error when `step` is a later one.
std::int64_t last_step(const Options& options, std::int64_t step,
                       const lockstep::DistributedSampler& sampler, std::size_t batch_size,
                       bool drop_last = false);

// Each rank appends a line for each step, in one write(): "STEP RANK INDEX INDEX ...", where the
// first step is 1, and the indices are those in the dataset.
class SampleLog {
 public:
  SampleLog(const std::string& file, int rank);  // Does nothing without a name.
  ~SampleLog();
  SampleLog(const SampleLog&) = delete;
  SampleLog& operator=(const SampleLog&) = delete;

  void write(std::int64_t step, const std::vector<std::size_t>& indices) const;

 private:
  const std::string file_;
  const int rank_;
  const int fd_;
};
