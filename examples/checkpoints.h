// The examples' checkpoints, and a log of training samples.

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

  // Resumes according to --resume. Unless that is "auto", throws std::runtime_error if the folder
  // has later checkpoints than the start of this training.
  void resume();

  // Call it after each step with the number of all steps. If the job was asked to save and exit,
  // saves and returns true; exit with lockstep::exit_preempted.
  bool make_room(std::int64_t step);

  // Call it after each step: saves every --checkpoint-every steps. Prepares for saving after the
  // first.
  void after_step(std::int64_t step);

  // Saves unsaved steps durably, at the end.
  void finish(std::int64_t step);

 private:
  void load();
  void require_newest() const;

  const Options& options_;
  const lockstep::ProcessGroup& world_;
  const lockstep::TrainingState& state_;
  std::optional<lockstep::Checkpointer> checkpointer_;
  // Step of the newest checkpoint, or 0.
  std::int64_t saved_ = 0;
  bool is_prepared_ = false;
};

// Samples per step over all ranks: `requested`, or those of the resumed training. Reports a change
// on stderr.
std::int64_t global_batch_of(std::int64_t resumed, std::optional<std::int64_t> requested,
                             const lockstep::ProcessGroup& world);

// This rank's part of them. Throws std::runtime_error if parts are unequal.
std::size_t share_of(std::int64_t global_batch, const lockstep::ProcessGroup& world);

// --steps, or the rest of --epochs after `step`. Incomplete batches count unless dropped. Throws
// std::runtime_error if `step` is later.
std::int64_t last_step(const Options& options, std::int64_t step,
                       const lockstep::DistributedSampler& sampler, std::size_t batch_size,
                       bool drop_last = false);

// Each rank appends one line per step, in one write(): "STEP RANK INDEX INDEX ...". Steps begin at
// 1.
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
