// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group_hooks.h"

#include <cstdint>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/group_state.h"
#include "lockstep/job/host_session.h"

namespace lockstep {

// --- Steps ---------------------------------------------------------------------------------------

void ProcessGroup::State::set_step(std::uint64_t step) {
  require_own_process();
  const std::lock_guard lock(life_mutex_);
  require_usable();
  rank_wide_->step_is_told.store(true, std::memory_order_relaxed);
  activity_->step.store(step, std::memory_order_relaxed);
}

void ProcessGroup::State::count_step() {
  require_own_process();
  const std::lock_guard lock(life_mutex_);
  require_usable();
  if (!rank_wide_->step_is_told.load(std::memory_order_relaxed))
    activity_->step.fetch_add(1, std::memory_order_relaxed);
}

void count_step(const ProcessGroup& group) { GroupAccess::state_of(group).count_step(); }

// --- Preemption ----------------------------------------------------------------------------------

void ProcessGroup::State::on_preemption() {
  require_own_process();
  require_usable();
  keep_preemption_signals();
  // The handlers come first: from now on a signal ends no process.
  rank_wide_->expect_preemption();
}

bool ProcessGroup::State::preempted(const CallOptions& options) {
  require(keeps_preemption_signals(), "preempted: call on_preemption() first");
  std::uint8_t any = preemption_signalled();
  Collective collective{
      .signature = {.count = 1, .operation = Operation::all_reduce, .dtype = DType::uint8},
      .output = {.data = &any, .count = 1, .dtype = DType::uint8}};
  collective.signature.op = ReduceOp::max;
  CallOptions own = options;
  own.label = "preempted";
  run(std::move(collective), own);
  if (any != 0) rank_wide_->agree_on_preemption();
  return any != 0;
}

// --- The end -------------------------------------------------------------------------------------

void ProcessGroup::State::add_last_act(std::weak_ptr<const std::function<void()>> act) {
  require_own_process();
  const std::lock_guard lock(order_);
  last_acts_.push_back(std::move(act));
}

// Without the lock, as they may be waiting for calls of this group.
void ProcessGroup::State::run_last_acts() {
  std::unique_lock lock(order_);
  const auto acts = last_acts_;
  const auto children = children_;
  lock.unlock();
  for (const auto& weak : acts)
    if (const auto act = weak.lock()) (*act)();
  for (const auto& weak : children)
    if (const auto child = weak.lock()) child->run_last_acts();
}

void before_end(const ProcessGroup& group,
                const std::shared_ptr<const std::function<void()>>& act) {
  GroupAccess::state_of(group).add_last_act(act);
}

}  // namespace lockstep
