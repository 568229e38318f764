// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/steps.h"

#include "lockstep/comm/group_state.h"

namespace lockstep {

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

}  // namespace lockstep
