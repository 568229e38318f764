// SPDX-License-Identifier: Apache-2.0
#include "tools/tune/divisions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

namespace lockstep::tools {
namespace {

int distinct_nodes(const Topology& topology) {
  std::set<int> nodes;
  for (const Core& core : topology.cores) nodes.insert(core.node);
  return static_cast<int>(nodes.size());
}

int distinct_caches(const Topology& topology) {
  std::set<int> caches;
  for (const Core& core : topology.cores) caches.insert(core.l3);
  return static_cast<int>(caches.size());
}

std::string replace_all(std::string text, std::string_view name, int value) {
  const std::string digits = std::to_string(value);
  for (std::size_t at = 0; (at = text.find(name, at)) != text.npos; at += digits.size())
    text.replace(at, name.size(), digits);
  return text;
}

}  // namespace

std::vector<Division> sensible_divisions(const Topology& topology, std::optional<double> quota,
                                         int global_batch,
                                         const std::vector<std::vector<std::string>>& variants) {
  int cores = static_cast<int>(topology.cores.size());
  if (quota) cores = std::clamp(static_cast<int>(*quota), 1, cores);
  std::vector<Division> found;
  for (const int ranks :
       std::set<int>{1, 2, distinct_nodes(topology), distinct_caches(topology), cores}) {
    if (ranks > cores || cores % ranks != 0 || global_batch % ranks != 0) continue;
    const Division plain{.ranks = ranks, .threads = cores / ranks, .batch = global_batch / ranks};
    found.push_back(plain);
    for (const std::vector<std::string>& options : variants) {
      found.push_back(plain);
      found.back().options = options;
    }
  }
  return found;
}

std::vector<std::string> command_for(const Division& division,
                                     const std::vector<std::string>& program) {
  std::vector<std::string> command;
  for (std::string word : program) {
    for (const auto& [name, value] : {std::pair{"{batch}", division.batch},
                                      {"{ranks}", division.ranks},
                                      {"{threads}", division.threads}})
      word = replace_all(std::move(word), name, value);
    command.push_back(std::move(word));
  }
  command.insert(command.end(), division.options.begin(), division.options.end());
  return command;
}

std::string describe(const Division& division) {
  return fmt::format("{} rank{} x {} thread{}{}{}", division.ranks, division.ranks == 1 ? "" : "s",
                     division.threads, division.threads == 1 ? "" : "s",
                     division.options.empty() ? "" : ", ", fmt::join(division.options, " "));
}

}  // namespace lockstep::tools
