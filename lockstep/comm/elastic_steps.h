// The steps of a training whose ranks may die: computes, applies or repeats them. Changes the group
// in between, and selects the ranks that need the state. Shared by Survival in C++
// (train/survival.h) and in Python: docs/internals/survival.md.
//
// Thread safety: one thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/base/api.h"
#include "lockstep/comm/elastic_group.h"

namespace lockstep {

// The objects of a training and their state. An Error that passes can_continue_after() changes the
// group.
class TrainingObjects {
 public:
  virtual ~TrainingObjects() = default;

  // Copies all that compute() may change.
  virtual void copy() = 0;

  // Collective: replaces all objects that depend on the group, and if `restores`, loads the copies.
  virtual void make(ProcessGroup& group, bool restores) = 0;

  // Collective. Errors: unsupported if a rank has only a part of the state.
  virtual void require_whole(ProcessGroup& group) = 0;

  // Called together, by rank 0 and a rank that needs the state. Not with checkpoints.
  virtual void send(ProcessGroup& group, int to) = 0;
  virtual void receive(ProcessGroup& group, int from) = 0;

  // With checkpoints: before this rank agrees on a new group, closes those of the current one.
  virtual void close_checkpoints() {}

  // Collective, with checkpoints: saves the state after `step` steps.
  virtual void save([[maybe_unused]] std::int64_t step) {}

  // Collective, with checkpoints, after make(): loads the newest one and returns its step; nothing
  // without one.
  virtual std::optional<std::int64_t> load() { return std::nullopt; }
};

class LOCKSTEP_API ElasticSteps {
 public:
  // `objects` must outlive it. `save_every`: steps between checkpoints, for ranks that have only
  // parts of the state; a new group loads the newest; 0: none. Errors: misuse if that is negative;
  // those of ElasticGroup.
  ElasticSteps(TrainingObjects& objects, const ElasticOptions& options,
               std::int64_t save_every = 0);

  // For simulations: `runtime` must outlive it.
  ElasticSteps(TrainingObjects& objects, const ElasticOptions& options,
               comm::ElasticRuntime& runtime, std::int64_t save_every = 0);

  // Collective, as Survival's constructor: makes the first group, or joins one and receives the
  // state. Call it once, first.
  void begin();

  // See Survival::step(). Returns false if this rank leaves; later calls then return false at once.
  bool step(const std::function<void()>& compute, const std::function<void()>& apply);

  std::int64_t steps() const { return steps_; }
  bool has_left() const { return has_left_; }
  int changes() const { return elastic_.generation(); }
  ProcessGroup& group() { return elastic_.group(); }

  // Number of ranks, divided by that at the start.
  double scale();

  void finish() { elastic_.finish(); }

 private:
  enum class Computed { completed, with_change, failed };

  bool has_checkpoints() const { return save_every_ > 0; }
  Computed try_to_compute(const std::function<void()>& compute);
  bool is_about_to_change();
  void complete(const std::function<void()>& apply);
  bool try_to_complete(const std::function<void()>& apply, bool with_change);
  bool change_group(const std::function<void()>& apply);
  void make_group(const ElasticGroup::Change& change);
  void load_checkpoint();
  void share_state(const ElasticGroup::Change& change);
  void log_change(const ElasticGroup::Change& change);

  TrainingObjects& objects_;
  comm::ElasticRuntime& runtime_;
  const int first_size_;
  const std::int64_t save_every_;
  ElasticGroup elastic_;
  bool is_made_ = false;   // The objects of the current group.
  bool is_copied_ = true;  // Nothing has been applied since the last copy.
  bool has_state_ = true;
  bool has_begun_ = false;  // A first group was made, with the state.
  bool has_left_ = false;
  std::int64_t steps_ = 0;
  std::int64_t prepared_ = 0;
  int size_ = 0;         // Number of ranks of the group before.
  int futile_ = 0;       // Changes since the last completed step.
  std::string failure_;  // The latest Error that changed the group.
};

}  // namespace lockstep
