// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/host_map.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "lockstep/comm/shm/parts.h"

namespace lockstep::comm {

HostMap::HostMap(const std::vector<int>& host_of, int rank) {
  std::map<int, int> order;  // From a host's number to its index.
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

namespace {

std::size_t sum(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

}  // namespace

std::size_t begin_of(const Counts& parts, int part) {
  return std::accumulate(parts.begin(), parts.begin() + part, std::size_t{0});
}

Counts cut(std::size_t count, std::size_t element, int slices, int owners) {
  const auto n = static_cast<std::size_t>(slices);
  const std::size_t whole = cache_line / element;
  const std::size_t each = ((count + n - 1) / n + whole - 1) / whole * whole;
  Counts counts(static_cast<std::size_t>(owners), 0);
  for (std::size_t s = 0; s < n; ++s) counts[s] = std::min(each, count - std::min(count, s * each));
  return counts;
}

HostBlocks::HostBlocks(const HostMap& map, const Counts& counts, std::size_t element)
    : map_(map), counts_(counts), element_(element) {
  for (const std::size_t count : counts_) {
    offsets_.push_back(elements_);
    elements_ += count;
  }
}

Counts HostBlocks::parts(int host) const {
  Counts parts;
  for (const int rank : map_.ranks(host)) parts.push_back(counts_[static_cast<std::size_t>(rank)]);
  return parts;
}

std::size_t HostBlocks::elements(int host) const { return sum(parts(host)); }

Counts HostBlocks::cut_of(int host) const {
  return cut(elements(host), element_, map_.slices(), map_.slices());
}

Counts HostBlocks::slices_by_host(int slice) const {
  Counts counts;
  for (int host = 0; host < map_.hosts(); ++host)
    counts.push_back(cut_of(host)[static_cast<std::size_t>(slice)]);
  return counts;
}

Counts HostBlocks::elements_by_slice(int owners) const {
  Counts counts(static_cast<std::size_t>(owners), 0);
  for (int slice = 0; slice < map_.slices(); ++slice)
    counts[static_cast<std::size_t>(slice)] = sum(slices_by_host(slice));
  return counts;
}

template <class Act>
void HostBlocks::for_each_run(Act act) const {
  std::size_t among_slices = 0;
  Counts begin(static_cast<std::size_t>(map_.hosts()), 0);  // Where the slice begins in each block.
  for (int slice = 0; slice < map_.slices(); ++slice)
    for (int host = 0; host < map_.hosts(); ++host) {
      const std::size_t from = begin[static_cast<std::size_t>(host)];
      const std::size_t to = from + cut_of(host)[static_cast<std::size_t>(slice)];
      begin[static_cast<std::size_t>(host)] = to;
      std::size_t part_begin = 0;
      for (const int rank : map_.ranks(host)) {
        const std::size_t part_end = part_begin + counts_[static_cast<std::size_t>(rank)];
        const std::size_t first = std::max(from, part_begin);
        const std::size_t last = std::min(to, part_end);
        if (first < last) {
          act(among_slices, offsets_[static_cast<std::size_t>(rank)] + first - part_begin,
              last - first);
          among_slices += last - first;
        }
        part_begin = part_end;
      }
    }
}

void HostBlocks::slices_from_parts(std::byte* slices, const std::byte* parts) const {
  for_each_run([&](std::size_t slice, std::size_t part, std::size_t count) {
    std::memcpy(slices + slice * element_, parts + part * element_, count * element_);
  });
}

void HostBlocks::parts_from_slices(std::byte* parts, const std::byte* slices) const {
  for_each_run([&](std::size_t slice, std::size_t part, std::size_t count) {
    std::memcpy(parts + part * element_, slices + slice * element_, count * element_);
  });
}

}  // namespace lockstep::comm
