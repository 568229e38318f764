// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/join.h"

#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"

namespace lockstep::parallel {
namespace {

using Step = Join::Step;

std::vector<std::size_t> active_in(const std::vector<Step>& steps) {
  std::vector<std::size_t> ranks;
  for (std::size_t rank = 0; rank < steps.size(); ++rank)
    if (steps[rank] != Step::joined) ranks.push_back(rank);
  return ranks;
}

void require_same_step(const std::vector<Step>& steps, const std::vector<std::size_t>& active) {
  for (const std::size_t rank : active) {
    if (steps[rank] == steps[active.front()]) continue;
    throw Error(Fault::mismatch, "rank " + std::to_string(active.front()) + " and rank " +
                                     std::to_string(rank) +
                                     " have inputs but do different things: one synchronises "
                                     "buffers, the other averages gradients");
  }
}

}  // namespace

Join::Join(const ProcessGroup& group, JoinOptions options)
    : group_(group),
      options_(options),
      label_(std::string("join: divide_by_initial_world_size ") +
             (options.divide_by_initial_world_size ? "1" : "0") + ", throw_on_early_termination " +
             (options.throw_on_early_termination ? "1" : "0")),
      active_ranks_(group.size()),
      largest_active_rank_(group.size() - 1) {}

std::optional<Step> Join::exchange(Step own) {
  const std::vector<Step> steps = all_gather_value(own, group_, {.label = label_});
  const std::vector<std::size_t> active = active_in(steps);
  if (active.empty()) return {};
  require_same_step(steps, active);
  if (options_.throw_on_early_termination && active.size() < steps.size())
    throw Error(Fault::aborted, "a rank has no inputs left, but rank " +
                                    std::to_string(active.front()) +
                                    " has some, and throw_on_early_termination is set");
  active_ranks_ = static_cast<int>(active.size());
  largest_active_rank_ = static_cast<int>(active.back());
  return steps[active.front()];
}

}  // namespace lockstep::parallel
