// Checkpoints of the examples, set by options, and a log of the samples that they train on.

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
  // `state` must outlive this object.
  Checkpoints(const Options& options, const lockstep::ProcessGroup& world,
              const lockstep::TrainingState& state);

  // Resumes as --resume says. Without --resume, throws std::runtime_error when the folder has later
  // checkpoints than the training that begins here.
  void resume();

  // Call it after each step with the number of all steps so far. Returns true if the job has been
  // told to make room. Then all is saved, and the rank should exit with lockstep::exit_preempted.
  bool make_room(std::int64_t step);

  // Call it after each step: saves every --checkpoint-every steps. Prepares for the saves after the
  // first step, when the optimizer has its state.
  void after_step(std::int64_t step);

  // Call it at the end: saves unsaved steps, and waits until they are on the disk.
  void finish(std::int64_t step);

 private:
  void load();
  void require_newest() const;

  const Options& options_;
  const lockstep::ProcessGroup& world_;
  const lockstep::TrainingState& state_;
  std::optional<lockstep::Checkpointer> checkpointer_;
  // Step of the newest checkpoint; 0 before the first, as there is nothing to save before a step.
  std::int64_t saved_ = 0;
  bool is_prepared_ = false;
};

// Returns the samples per step on all ranks together: the resumed training's, unless the command
// line has `wanted` others. A change is reported on stderr.
std::int64_t global_batch_of(std::int64_t resumed, std::optional<std::int64_t> wanted,
                             const lockstep::ProcessGroup& world);

// Returns this rank's part of them. Throws std::runtime_error when ranks cannot have equal parts.
std::size_t share_of(std::int64_t global_batch, const lockstep::ProcessGroup& world);

// Returns the number of steps of the whole training: --steps, or the rest of --epochs after `step`,
// in batches of `batch_size`. Incomplete batches count unless they are dropped. Throws
// std::runtime_error when `step` is a later one.
std::int64_t last_step(const Options& options, std::int64_t step,
                       const lockstep::DistributedSampler& sampler, std::size_t batch_size,
                       bool drop_last = false);

// Log to which each rank appends one line per step, in one write(): "STEP RANK INDEX INDEX ...".
// The first step is 1, and the indices are those of the dataset.
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
