// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/launch/topology.h"

namespace lockstep {
namespace {

// Cores of one line of the picture: they share all that the line names.
struct Line {
  Core shared;  // With the processors of all of them.
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

// Returns "  rank 0: 0-3  ranks 1-2: 4-7" for the ranks with processors of this line.
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

}  // namespace lockstep
