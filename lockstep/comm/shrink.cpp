// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shrink.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/elastic_group.h"
#include "lockstep/comm/group_state.h"

namespace lockstep {
namespace {

// By rank of `group`.
std::vector<std::string> processes_of(const ProcessGroup& group) {
  const ProcessGroup::State& state = GroupAccess::state_of(group);
  const auto& all = state.origin().processes;
  require(all != nullptr, [&] {
    return fmt::format("group {} is not of an ElasticGroup: its ranks never change", group.name());
  });
  std::vector<std::string> own;
  for (int rank = 0; rank < group.size(); ++rank)
    own.push_back((*all)[static_cast<std::size_t>(state.identity().world_rank(rank))]);
  return own;
}

}  // namespace

std::vector<int> former_ranks(const ProcessGroup& before, const ProcessGroup& after) {
  std::map<std::string, int> known;
  for (std::string& process : processes_of(before))
    known.emplace(std::move(process), static_cast<int>(known.size()));
  std::vector<int> ranks;
  for (const std::string& process : processes_of(after)) {
    const auto found = known.find(process);
    ranks.push_back(found == known.end() ? -1 : found->second);
  }
  return ranks;
}

ProcessGroup comm::recreate_group(const ProcessGroup& group, const ProcessGroup& world,
                                  const std::vector<int>& ranks, const CallOptions& options) {
  const GroupOrigin& origin = GroupAccess::state_of(group).origin();
  const std::string& name = origin.name.empty() ? group.name() : origin.name;
  ProcessGroup made = world.group_of(ranks, name, options);
  ProcessGroup::State& state = GroupAccess::state_of(made);
  state.set_origin({.processes = state.origin().processes, .name = name});
  return made;
}

ProcessGroup shrink(const ProcessGroup& group, const ProcessGroup& world,
                    const CallOptions& options) {
  std::vector<int> left = former_ranks(world, group);
  std::erase(left, -1);
  return comm::recreate_group(group, world, left, options);
}

}  // namespace lockstep
