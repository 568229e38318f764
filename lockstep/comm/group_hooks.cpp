// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group_hooks.h"

#include "lockstep/comm/group_state.h"
#include "lockstep/job/step_clock.h"

namespace lockstep {

int job_rank(const ProcessGroup& group, int rank) {
  return GroupAccess::state_of(group).identity().world_rank(rank);
}

void count_step(const ProcessGroup& group) { count_step(group, StepClock::of_this_thread()); }

void count_step(const ProcessGroup& group, StepClock* loop) {
  GroupAccess::state_of(group).in_job()->count_step();
  if (loop != nullptr) loop->count_step();
}

void before_end(const ProcessGroup& group,
                const std::shared_ptr<const std::function<void()>>& act) {
  GroupAccess::state_of(group).add_last_act(act);
}

std::shared_ptr<void> companion_of(const ProcessGroup& group, const std::type_info& type,
                                   const std::function<std::shared_ptr<void>()>& make) {
  return GroupAccess::state_of(group).companion(type, make);
}

}  // namespace lockstep
