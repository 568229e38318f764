// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/host_map.h"

#include <algorithm>
#include <map>

namespace lockstep {

HostMap::HostMap(const std::vector<int>& host_of, int rank) {
  std::map<int, int> order;  // From a host's number to its position by first occurrence.
  for (std::size_t r = 0; r < host_of.size(); ++r) {
    const auto [seen, is_new] = order.try_emplace(host_of[r], static_cast<int>(order.size()));
    if (is_new) ranks_.emplace_back();
    auto& local = ranks_[static_cast<std::size_t>(seen->second)];
    places_.push_back({seen->second, static_cast<int>(local.size())});
    local.push_back(static_cast<int>(r));
  }
  mine_ = place_of(rank);
  const auto least = std::min_element(
      ranks_.begin(), ranks_.end(),
      [](const auto& one, const auto& other) { return one.size() < other.size(); });
  slices_ = static_cast<int>(least->size());
}

std::vector<int> HostMap::slice_ranks(int slice) const {
  std::vector<int> members;
  for (const auto& local : ranks_) members.push_back(local[static_cast<std::size_t>(slice)]);
  return members;
}

}  // namespace lockstep
