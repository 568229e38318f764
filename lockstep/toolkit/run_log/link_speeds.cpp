// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/run_log/link_speeds.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/time.h"

namespace lockstep::run_log {
namespace {

constexpr std::size_t large = 1 << 18;  // Elements.

double best_of(int tries, const ProcessGroup& group, std::vector<float>& values,
               std::size_t count) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < tries; ++i) {
    group.barrier();
    const auto begin = Clock::now();
    group.all_reduce({.data = values.data(), .count = count});
    best = std::min(best, seconds_since(begin));
  }
  return best;
}

LinkSpeed measure(const ProcessGroup& group, std::string name) {
  std::vector<float> values(large);
  const double latency = best_of(20, group, values, 1);
  const double whole = best_of(3, group, values, large);
  constexpr auto bytes = static_cast<double>(large * sizeof(float));
  return {std::move(name), latency, whole > latency ? bytes / (whole - latency) : 0};
}

std::string name_of_link(const std::string& backend) {
  constexpr std::string_view shared = "shm";
  if (backend == shared) return "shared memory";
  const std::size_t plus = backend.find('+');
  return plus == backend.npos ? backend : backend.substr(plus + 1);
}

}  // namespace

std::vector<LinkSpeed> measure_links(const ProcessGroup& group,
                                     const std::vector<int>& host_of_rank) {
  if (group.size() == 1) return {};
  std::vector<LinkSpeed> links{measure(group, name_of_link(group.backend()))};
  const int hosts = 1 + std::ranges::max(host_of_rank);
  if (hosts == 1 || hosts == group.size()) return links;
  const int host = host_of_rank[static_cast<std::size_t>(group.rank())];
  const ProcessGroup here = group.split(host, group.rank(), {.label = "ranks of a host"});
  if (here.size() > 1) links.push_back(measure(here, "shared memory"));
  return links;
}

}  // namespace lockstep::run_log
