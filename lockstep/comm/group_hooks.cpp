// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group_hooks.h"

#include <algorithm>
#include <string>

#include "lockstep/comm/group_state.h"
#include "lockstep/comm/hosts/rendezvous.h"
#include "lockstep/comm/values.h"
#include "lockstep/job/step_clock.h"

namespace lockstep {

int job_rank(const ProcessGroup& group, int rank) {
  return GroupAccess::state_of(group).identity().world_rank(rank);
}

void note_failed_call() { comm::RankContext::note_failed_call(); }

void note_call(const ProcessGroup& group) { GroupAccess::state_of(group).note_call(); }

void report_cause_of_exit(const ProcessGroup& group) {
  GroupAccess::state_of(group).rank_context()->report_cause_of_exit();
}

std::chrono::milliseconds timeout_of(const ProcessGroup& group) {
  return GroupAccess::state_of(group).identity().timeout;
}

std::vector<int> host_of_ranks(const ProcessGroup& group) {
  std::vector<std::string> hosts;
  std::vector<int> host_of_rank;
  for (const std::string& place : all_gather_bytes(comm::this_place(), group)) {
    const auto found = std::ranges::find(hosts, place);
    host_of_rank.push_back(static_cast<int>(found - hosts.begin()));
    if (found == hosts.end()) hosts.push_back(place);
  }
  return host_of_rank;
}

std::shared_ptr<const std::atomic<std::uint64_t>> reduced_bytes(const ProcessGroup& group) {
  return GroupAccess::state_of(group).rank_context()->reduced_bytes();
}

void count_step(const ProcessGroup& group) { count_step(group, StepClock::of_this_thread()); }

void count_step(const ProcessGroup& group, StepClock* loop) {
  GroupAccess::state_of(group).rank_context()->count_step();
  if (loop != nullptr) loop->count_step();
}

void before_end(const ProcessGroup& group,
                const std::shared_ptr<const std::function<void()>>& act) {
  GroupAccess::state_of(group).add_last_act(act);
}

std::shared_ptr<void> attachment_of(const ProcessGroup& group, const std::type_info& type,
                                    const std::function<std::shared_ptr<void>()>& make) {
  return GroupAccess::state_of(group).attachment(type, make);
}

}  // namespace lockstep
