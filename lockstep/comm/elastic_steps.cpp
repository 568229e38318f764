// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/elastic_steps.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/elastic_runtime.h"
#include "lockstep/job/environment.h"

namespace lockstep {
namespace {

constexpr int most_futile = 30;

}  // namespace

ElasticSteps::ElasticSteps(TrainingObjects& objects, const ElasticOptions& options,
                           std::int64_t save_every)
    : ElasticSteps(objects, options, comm::elastic_runtime(), save_every) {}

ElasticSteps::ElasticSteps(TrainingObjects& objects, const ElasticOptions& options,
                           comm::ElasticRuntime& runtime, std::int64_t save_every)
    : objects_(objects),
      runtime_(runtime),
      first_size_(
          (options.init.environment ? *options.init.environment : read_environment()).world_size),
      save_every_(save_every),
      elastic_(options, runtime) {
  require(save_every >= 0, "Survival: the steps between checkpoints must not be negative");
}

void ElasticSteps::begin() {
  if (change_group([] {})) elastic_.group().on_preemption();
}

bool ElasticSteps::step(const std::function<void()>& compute, const std::function<void()>& apply) {
  if (has_left_) return false;
  require(is_made_, "Survival: the objects of the current group could not be made");
  for (std::int64_t target = steps_ + 1; steps_ < target;) {
    Computed computed = try_to_compute(compute);
    if (computed != Computed::failed && !try_to_complete(apply, computed == Computed::with_change))
      computed = Computed::failed;
    if (computed == Computed::completed) continue;
    if (!change_group(apply)) return false;
    target = std::min(target, steps_ + 1);  // The new group may have loaded an earlier step.
  }
  return true;
}

double ElasticSteps::scale() { return static_cast<double>(elastic_.group().size()) / first_size_; }

ElasticSteps::Computed ElasticSteps::try_to_compute(const std::function<void()>& compute) {
  objects_.copy();
  is_copied_ = true;
  try {
    if (steps_ == 1 && !has_checkpoints())
      objects_.require_whole(elastic_.group());  // Optimizers have states now.
    compute();
    prepared_ = steps_ + 1;
    return is_about_to_change() ? Computed::with_change : Computed::completed;
  } catch (const Error& error) {
    if (!can_continue_after(error)) throw;
    failure_ = bare_text(error);
    return Computed::failed;
  }
}

// Collective: whether a process waits to join, or a rank has a signal to leave. Returns after all
// ranks have entered.
bool ElasticSteps::is_about_to_change() {
  std::int64_t changes = elastic_.has_arrivals() || runtime_.preemption_signalled() ? 1 : 0;
  elastic_.group().all_reduce({.data = &changes, .count = 1, .dtype = DType::int64}, ReduceOp::bor,
                              {.label = "Survival::step"});
  return changes != 0;
}

void ElasticSteps::complete(const std::function<void()>& apply) {
  apply();
  prepared_ = ++steps_;
  futile_ = 0;
  is_copied_ = false;
  elastic_.group().set_step(static_cast<std::uint64_t>(steps_));
}

// False after an Error with which the group changes. With checkpoints, from which the next group
// continues, `apply` may communicate: sharded optimizers do.
bool ElasticSteps::try_to_complete(const std::function<void()>& apply, bool with_change) {
  try {
    complete(apply);
    if (has_checkpoints() && (with_change || steps_ % save_every_ == 0)) objects_.save(steps_);
    return true;
  } catch (const Error& error) {
    if (!has_checkpoints() || !can_continue_after(error)) throw;
    failure_ = bare_text(error);
    return false;
  }
}

// Repeats until a group is made. False if this rank has left.
bool ElasticSteps::change_group(const std::function<void()>& apply) {
  while (true) {
    if (++futile_ > most_futile)
      throw Error(Fault::aborted,
                  fmt::format("the group changed {} times without a completed step; the last time "
                              "because: {}",
                              most_futile, failure_));
    objects_.close_checkpoints();
    const ElasticGroup::Change change = elastic_.agree({.completed = steps_,
                                                        .prepared = prepared_,
                                                        .leaves = runtime_.preemption_signalled(),
                                                        .has_state = has_state_});
    if (has_begun_ && change.completed > steps_ && !has_checkpoints()) {
      check(prepared_ == change.completed, "this rank has not prepared a step that is complete");
      complete(apply);
    }
    prepared_ = steps_;  // Otherwise the step is repeated.
    has_left_ = change.has_left;
    if (has_left_) return false;
    try {
      make_group(change);
      return true;
    } catch (const Error& error) {
      if (!can_continue_after(error)) throw;
      failure_ = bare_text(error);
    }
  }
}

void ElasticSteps::make_group(const ElasticGroup::Change& change) {
  has_state_ = !change.joins;
  elastic_.form();
  log_change(change);
  if (has_begun_ && !is_copied_) {
    objects_.copy();
    is_copied_ = true;
  }
  is_made_ = false;
  objects_.make(elastic_.group(), /*restores=*/has_begun_ && !has_checkpoints());
  is_made_ = true;
  if (has_checkpoints()) {
    load_checkpoint();
  } else {
    if (elastic_.generation() == 0) objects_.require_whole(elastic_.group());
    share_state(change);
  }
  has_state_ = has_begun_ = true;
  size_ = elastic_.group().size();
  elastic_.group().set_step(static_cast<std::uint64_t>(steps_));
}

void ElasticSteps::load_checkpoint() {
  const std::optional<std::int64_t> loaded = objects_.load();
  if (!loaded) objects_.save(0);
  steps_ = prepared_ = loaded.value_or(0);
}

void ElasticSteps::share_state(const ElasticGroup::Change& change) {
  ProcessGroup& group = elastic_.group();
  for (int rank = 1; rank < group.size(); ++rank) {
    if (change.former_ranks[static_cast<std::size_t>(rank)] >= 0) continue;
    if (group.rank() == 0) objects_.send(group, rank);
    if (group.rank() == rank) objects_.receive(group, 0);
  }
  if (!has_state_) {
    steps_ = prepared_ = change.completed;
    is_copied_ = false;
  }
}

void ElasticSteps::log_change(const ElasticGroup::Change& change) {
  const ProcessGroup& group = elastic_.group();
  if (group.rank() != 0 || elastic_.generation() == 0) return;
  const auto joined = std::ranges::count(change.former_ranks, -1);
  const auto lost = size_ - (group.size() - joined);
  std::string text =
      fmt::format("training continues with {} ranks after step {}; {} left or were lost, {} joined",
                  group.size(), change.completed, lost, joined);
  if (lost > 0 && !failure_.empty()) text += " (" + failure_ + ")";
  log(lost > 0 ? LogLevel::warning : LogLevel::info, text);
}

}  // namespace lockstep
