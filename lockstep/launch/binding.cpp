// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/binding.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

// Cores with one package, node and L3 cache.
struct Line {
  Core shared;
  int cores = 0;
};

std::vector<Line> lines_of(const Topology& topology) {
  std::vector<Line> lines;
  for (const Core& core : topology.cores) {
    const bool same = !lines.empty() && lines.back().shared.package == core.package &&
                      lines.back().shared.node == core.node && lines.back().shared.l3 == core.l3;
    if (!same) lines.push_back({.shared = {core.package, core.node, core.l3, core.l3_bytes, {}}});
    std::vector<int>& cpus = lines.back().shared.cpus;
    cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
    ++lines.back().cores;
  }
  for (Line& line : lines) std::sort(line.shared.cpus.begin(), line.shared.cpus.end());
  return lines;
}

std::string size_of(const Core& core) {
  if (core.l3 < 0) return "no L3";
  constexpr std::uint64_t mega = 1 << 20;
  if (core.l3_bytes == 0) return "L3";
  return core.l3_bytes < mega ? fmt::format("L3 {} KiB", core.l3_bytes >> 10)
                              : fmt::format("L3 {} MiB", core.l3_bytes / mega);
}

std::vector<int> common(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

// Such as "  rank 0: 0-3  ranks 1-2: 4-7".
std::string tenants_of(const Line& line, const std::vector<RankBinding>& ranks) {
  std::string text;
  for (std::size_t first = 0; first < ranks.size();) {
    const std::vector<int> cpus = common(ranks[first].cpus, line.shared.cpus);
    std::vector<int> numbers;
    std::size_t next = first;
    for (; next < ranks.size() && common(ranks[next].cpus, line.shared.cpus) == cpus; ++next)
      numbers.push_back(static_cast<int>(next));
    first = next;
    if (cpus.empty()) continue;
    text += fmt::format("  {} {}: {}", numbers.size() == 1 ? "rank" : "ranks", as_ranges(numbers),
                        as_ranges(cpus));
  }
  return text;
}

using Cores = std::vector<Core>;

// In whole cores, at least 1; all without a quota.
int worth(const Topology& topology, std::optional<double> quota) {
  const int cores = static_cast<int>(topology.cores.size());
  if (!quota || *quota >= cores) return cores;
  return std::max(1, static_cast<int>(std::floor(*quota)));
}

// The border between two adjacent cores: 0 none (same L3), 1 L3, 2 NUMA node, 3 package.
int boundary(const Core& left, const Core& right) {
  if (left.package != right.package) return 3;
  if (left.node != right.node) return 2;
  return left.l3 != right.l3 ? 1 : 0;
}

// Cuts a row of cores into blocks whose sizes differ by at most one, preferably between packages,
// then nodes, then L3s. Among equal choices the larger blocks come first.
//
// Method: dynamic programming over the best value of `block` blocks, `larger` of them larger.
class Division {
 public:
  Division(const Cores& cores, int blocks)
      : blocks_(static_cast<std::size_t>(blocks)),
        smaller_size_(cores.size() / blocks_),
        larger_(cores.size() % blocks_),
        best_((blocks_ + 1) * (larger_ + 1), impossible) {
    at(0, 0) = 0;
    for (std::size_t block = 1; block <= blocks_; ++block)
      for (std::size_t larger = 0; larger <= std::min(block, larger_); ++larger) {
        const std::int64_t before =
            std::max(before_smaller(block, larger), before_larger(block, larger));
        if (before == impossible) continue;
        const std::size_t cut = position(block, larger);
        at(block, larger) = before + (cut < cores.size() ? value(cores[cut - 1], cores[cut]) : 0);
      }
  }

  std::vector<std::size_t> sizes() const {
    std::vector<std::size_t> sizes(blocks_, smaller_size_);
    std::size_t larger = larger_;
    for (std::size_t block = blocks_; block > 0; --block) {
      // Going backwards, takes a smaller block unless the value is worse.
      if (before_smaller(block, larger) >= before_larger(block, larger)) continue;
      ++sizes[block - 1];
      --larger;
    }
    return sizes;
  }

 private:
  static constexpr std::int64_t impossible = -1;

  // One cut of a level outweighs all cuts of lower levels, fewer than 2^20.
  static std::int64_t value(const Core& left, const Core& right) {
    const int level = boundary(left, right);
    return level == 0 ? 0 : std::int64_t{1} << (20 * (level - 1));
  }

  std::size_t position(std::size_t block, std::size_t larger) const {
    return block * smaller_size_ + larger;
  }
  std::int64_t& at(std::size_t block, std::size_t larger) {
    return best_[block * (larger_ + 1) + larger];
  }
  std::int64_t at(std::size_t block, std::size_t larger) const {
    return best_[block * (larger_ + 1) + larger];
  }
  std::int64_t before_smaller(std::size_t block, std::size_t larger) const {
    return at(block - 1, larger);
  }
  std::int64_t before_larger(std::size_t block, std::size_t larger) const {
    return larger == 0 ? impossible : at(block - 1, larger - 1);
  }

  std::size_t blocks_;
  std::size_t smaller_size_;
  std::size_t larger_;
  std::vector<std::int64_t> best_;
};

// `threads`: the rank's share of these cores.
RankBinding on(const Topology& topology, const Cores& cores, int threads) {
  RankBinding binding{.threads = threads};
  for (const Core& core : cores)
    binding.cpus.insert(binding.cpus.end(), core.cpus.begin(), core.cpus.end());
  std::sort(binding.cpus.begin(), binding.cpus.end());
  const bool of_one_node = std::all_of(cores.begin(), cores.end(), [&](const Core& core) {
    return core.node == cores.front().node;
  });
  if (topology.nodes > 1 && of_one_node) binding.memory_nodes = {cores.front().node};
  return binding;
}

std::vector<Cores> divided(const Topology& topology, int ranks) {
  std::vector<Cores> blocks;
  auto next = topology.cores.begin();
  for (const std::size_t size : Division(topology.cores, ranks).sizes()) {
    const auto end = next + static_cast<std::ptrdiff_t>(size);
    blocks.emplace_back(next, end);
    next = end;
  }
  return blocks;
}

Cores of_same_caches(const Topology& topology, const Cores& own) {
  Cores near;
  for (const Core& core : topology.cores)
    if (std::any_of(own.begin(), own.end(),
                    [&](const Core& mine) { return boundary(mine, core) == 0; }))
      near.push_back(core);
  return near;
}

template <class CoresOf>
std::vector<RankBinding> by(CoresOf cores_of, const Topology& topology, int ranks, int share) {
  std::vector<RankBinding> bindings;
  for (const Cores& own : divided(topology, ranks))
    bindings.push_back(on(topology, cores_of(own), std::min(static_cast<int>(own.size()), share)));
  return bindings;
}

std::vector<RankBinding> by_core(const Topology& topology, int ranks, int share) {
  return by(std::identity{}, topology, ranks, share);
}

std::vector<RankBinding> by_cache(const Topology& topology, int ranks, int share) {
  return by([&](const Cores& own) { return of_same_caches(topology, own); }, topology, ranks,
            share);
}

std::vector<RankBinding> by_node(const Topology& topology, int ranks, int share) {
  std::vector<Cores> nodes;
  for (const Core& core : topology.cores) {
    if (nodes.empty() || nodes.back().front().node != core.node) nodes.emplace_back();
    nodes.back().push_back(core);
  }
  const auto node_of = [&](int rank) {
    return static_cast<std::size_t>(rank) * nodes.size() / static_cast<std::size_t>(ranks);
  };
  std::vector<int> tenants(nodes.size());
  for (int rank = 0; rank < ranks; ++rank) ++tenants[node_of(rank)];
  std::vector<RankBinding> bindings;
  for (int rank = 0; rank < ranks; ++rank) {
    const Cores& node = nodes[node_of(rank)];
    const int part = std::max(1, static_cast<int>(node.size()) / tenants[node_of(rank)]);
    bindings.push_back(on(topology, node, std::min(part, share)));
  }
  return bindings;
}

std::string why_unbound(const Topology& topology, std::optional<double> quota, int ranks,
                        Binding binding) {
  const int cores = static_cast<int>(topology.cores.size());
  if (binding == Binding::none) return "as asked for";
  if (binding != Binding::automatic) return {};
  if (ranks > cores) return "more ranks than cores";
  if (quota && *quota < cores)
    return fmt::format("a CPU quota of {:g} for {} cores, which limits time, not cores", *quota,
                       cores);
  return {};
}

}  // namespace

std::string picture_of(const Topology& topology, const std::vector<RankBinding>& ranks) {
  const std::vector<Line> lines = lines_of(topology);
  std::vector<std::string> cores;
  std::size_t widest = 0;
  for (const Line& line : lines) {
    cores.push_back(fmt::format("{} {} {}", line.cores,
                                line.cores == 1 ? "core:" : "cores:", as_ranges(line.shared.cpus)));
    widest = std::max(widest, cores.back().size());
  }
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Core& shared = lines[i].shared;
    std::string line = fmt::format("package {}  numa {}  {}  {:<{}}", shared.package, shared.node,
                                   size_of(shared), cores[i], widest);
    line += tenants_of(lines[i], ranks);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

BindingPlan plan_binding(const Topology& topology, std::optional<double> quota, int ranks,
                         Binding binding) {
  const int cores = static_cast<int>(topology.cores.size());
  require(ranks > 0, "cores are divided among at least one rank");
  const bool divides = binding == Binding::core || binding == Binding::cache;
  require(!divides || ranks <= cores, [&] {
    return fmt::format("{} ranks cannot have cores of their own: this process may use {}", ranks,
                       cores);
  });
  const bool limited = quota && *quota < cores;
  const int share = limited ? std::max(1, worth(topology, quota) / ranks) : cores;
  const std::string unbound = why_unbound(topology, quota, ranks, binding);

  BindingPlan plan;
  if (!unbound.empty())
    plan.ranks.assign(static_cast<std::size_t>(ranks),
                      {.threads = std::max(1, worth(topology, quota) / ranks)});
  else
    plan.ranks = (binding == Binding::numa   ? by_node
                  : binding == Binding::core ? by_core
                                             : by_cache)(topology, ranks, share);
  plan.picture = picture_of(topology, plan.ranks);
  if (!unbound.empty()) plan.picture += "no rank is bound: " + unbound + "\n";
  return plan;
}

BindingPlan plan_binding(int ranks, Binding binding) {
  return plan_binding(read_topology(affinity_mask()), cpu_quota(), ranks, binding);
}

int usable_cores() { return worth(read_topology(affinity_mask()), cpu_quota()); }

}  // namespace lockstep
