// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/shared_parameters/host_groups.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <iterator>
#include <map>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/sharing_ranks.h"

namespace lockstep::parallel {

HostGroups host_groups(const ProcessGroup& group, const std::string& label) {
  const std::vector<int> leaders = sharing_ranks(group, label);
  if (std::ranges::all_of(leaders, [](int leader) { return leader == 0; })) {
    HostGroups groups{.all = group, .host = group, .owners = {}};
    for (int rank = 0; rank < group.size(); ++rank) groups.owners.push_back(rank);
    return groups;
  }
  std::map<int, std::vector<int>> hosts;  // By leader.
  for (int rank = 0; rank < group.size(); ++rank)
    hosts[leaders[static_cast<std::size_t>(rank)]].push_back(rank);
  for (const auto& [leader, ranks] : hosts)
    if (ranks.size() != hosts.begin()->second.size())
      throw Error(Fault::unsupported,
                  "each host must have equally many ranks: the host of rank 0 has " +
                      std::to_string(hosts.begin()->second.size()) + ", that of rank " +
                      std::to_string(leader) + " has " + std::to_string(ranks.size()));
  std::vector<int> owners;
  for (std::size_t rail = 0; rail < hosts.begin()->second.size(); ++rail)
    for (const auto& [leader, ranks] : hosts) owners.push_back(ranks[rail]);
  const int leader = leaders[static_cast<std::size_t>(group.rank())];
  const std::vector<int>& here = hosts.at(leader);
  const auto rail = std::find(here.begin(), here.end(), group.rank()) - here.begin();
  const auto place = std::distance(hosts.begin(), hosts.find(leader));
  const std::string host_label = label + ", ranks of a host";
  const std::string rail_label = label + ", a rank of each host";
  return {
      .all = group,
      .host = group.split(leader, 0, {.label = host_label}),
      .rail = group.split(static_cast<int>(rail), static_cast<int>(place), {.label = rail_label}),
      .owners = std::move(owners)};
}

void abort_groups(std::initializer_list<std::optional<ProcessGroup>> groups, std::string_view what,
                  std::string_view reason) noexcept {
  for (const auto& group : groups) {
    if (!group) continue;
    try {
      group->abort(std::string(what) + " ended with " + std::string(reason));
    } catch (const std::exception&) {
      // The group has ended already.
    }
  }
}

}  // namespace lockstep::parallel
