// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/rank_starter.h"
#include "lockstep/launch/run.h"

namespace lockstep {
namespace {

using Variables = std::map<std::string, std::string>;

Variables parse(const std::vector<std::string>& environment) {
  Variables variables;
  for (const std::string& entry : environment)
    variables.emplace(entry.substr(0, entry.find('=')), entry.substr(entry.find('=') + 1));
  return variables;
}

std::vector<std::string> own_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) entries.emplace_back(*entry);
  return entries;
}

std::string quoted(const std::string& word) {
  constexpr std::string_view unquoted =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%^";
  if (!word.empty() && word.find_first_not_of(unquoted) == word.npos) return word;
  std::string text = "'";
  for (const char character : word)
    text += character == '\'' ? std::string("'\\''") : std::string(1, character);
  return text + "'";
}

bool several_hosts(const RunOptions& options) { return options.hosts.most > 1; }

// Uses `seed` for all values decided at a job's start: variables that differ between seeds are not
// yet known.
Variables variables_of(const RunOptions& options, const RankBinding& binding, int local_rank,
                       int seed) {
  launch::RankPlace place = launch::place_of(options, local_rank, binding.threads);
  if (!options.log.directory.empty()) place.error_file = fmt::format("{}", seed);
  place.agent_fd = seed;
  place.round.world_size = options.nproc_per_node;
  place.round.job_id = fmt::format("{}", seed);
  place.round.master_addr = "127.0.0.1";
  place.round.master_port = options.hosts.master_port != 0 ? options.hosts.master_port : seed;
  if (place.continues) place.round.store = fmt::format("{}", seed);
  if (several_hosts(options)) {
    place.round.node = options.hosts.node_rank.value_or(seed);
    place.round.nodes = options.hosts.least == options.hosts.most ? options.hosts.most : seed;
    place.round.first_rank = place.round.world_size = seed * options.nproc_per_node;
    place.round.master_addr = place.round.store = fmt::format("{}", seed);
  }
  return parse(launch::environment_of(place, environ));
}

struct Told {
  Variables by_all;
  std::vector<Variables> by_rank;
  std::set<std::string> only_later;
  std::set<std::string> not_any_longer;  // The launcher has them, ranks do not.
};

Told tell_apart(const RunOptions& options, const BindingPlan& plan) {
  const Variables own = parse(own_environment());
  Told told;
  told.by_rank.resize(plan.ranks.size());
  std::vector<Variables> all;
  for (std::size_t i = 0; i < plan.ranks.size(); ++i)
    all.push_back(variables_of(options, plan.ranks[i], static_cast<int>(i), 1));
  const Variables otherwise = variables_of(options, plan.ranks[0], 0, 2);

  for (const auto& [key, value] : all.front()) {
    const bool shared = std::all_of(all.begin(), all.end(), [&](const Variables& variables) {
      return variables.at(key) == value;
    });
    const auto inherited = own.find(key);
    if (otherwise.at(key) != value)
      told.only_later.insert(key);
    else if (!shared)
      for (std::size_t i = 0; i < all.size(); ++i) told.by_rank[i].emplace(key, all[i].at(key));
    else if (inherited == own.end() || inherited->second != value)
      told.by_all.emplace(key, value);
  }
  for (const auto& [key, value] : own)
    if (!all.front().contains(key)) told.not_any_longer.insert(key);
  return told;
}

std::string line_of(const Variables& variables) {
  std::vector<std::string> entries;
  for (const auto& [key, value] : variables) entries.push_back(key + "=" + quoted(value));
  return fmt::format("{}", fmt::join(entries, " "));
}

std::string describe_hosts(const RunOptions& options) {
  const Hosts& hosts = options.hosts;
  if (!several_hosts(options))
    return fmt::format("{} {} on this host\n", options.nproc_per_node,
                       options.nproc_per_node == 1 ? "rank" : "ranks");
  const std::string count = hosts.least == hosts.most
                                ? fmt::format("{}", hosts.most)
                                : fmt::format("{} to {}", hosts.least, hosts.most);
  return fmt::format("{} {} on this host, {} of {} that meet at {}\n", options.nproc_per_node,
                     options.nproc_per_node == 1 ? "rank" : "ranks",
                     hosts.node_rank ? fmt::format("number {}", *hosts.node_rank) : "one", count,
                     hosts.endpoint);
}

std::string describe_binding(const RankBinding& binding) {
  if (binding.cpus.empty()) return "not bound";
  std::string text = "cores " + as_ranges(binding.cpus);
  if (!binding.memory_nodes.empty())
    text += ", memory of node " + as_ranges(binding.memory_nodes) + " first";
  return text;
}

std::string describe_ranks(const RunOptions& options, const BindingPlan& plan) {
  const Told told = tell_apart(options, plan);
  const std::string_view name = several_hosts(options) ? "local rank" : "rank";
  std::string text;
  for (std::size_t i = 0; i < plan.ranks.size(); ++i) {
    text += fmt::format("{} {}: {}\n", name, i, describe_binding(plan.ranks[i]));
    if (!told.by_rank[i].empty()) text += fmt::format("  {}\n", line_of(told.by_rank[i]));
  }
  text += "every rank:\n";
  for (const auto& [key, value] : told.by_all) text += fmt::format("  {}={}\n", key, quoted(value));
  if (!told.only_later.empty())
    text += fmt::format("  known when they start: {}\n", fmt::join(told.only_later, " "));
  if (!told.not_any_longer.empty())
    text += fmt::format("  not passed on: {}\n", fmt::join(told.not_any_longer, " "));
  return text;
}

std::string describe_logs(const RunOptions& options) {
  const LogOptions& log = options.log;
  if (log.directory.empty()) return {};
  const auto goes = [](Streams streams, Streams one) {
    return (static_cast<int>(streams) & static_cast<int>(one)) != 0;
  };
  std::string text = fmt::format("log files, in {}/JOB_RANDOM/attempt_0:\n", quoted(log.directory));
  for (int rank = 0; rank < options.nproc_per_node; ++rank)
    for (const auto& [stream, file] :
         {std::pair{Streams::out, "stdout.log"}, {Streams::err, "stderr.log"}}) {
      const bool shown = goes(log.tee.of(rank), stream);
      if (!shown && !goes(log.redirects.of(rank), stream)) continue;
      text += fmt::format("  {}/{}{}\n", rank, file, shown ? ", and shown here" : "");
    }
  return text;
}

}  // namespace

std::string describe_run(const RunOptions& options) {
  require(!options.program.empty() && !options.arguments.empty(), "there is no program to run");
  require(options.nproc_per_node > 0, "a job needs at least one rank");
  const BindingPlan plan = plan_binding(options.nproc_per_node, options.bind);
  std::vector<std::string> words{quoted(options.program)};
  for (std::size_t i = 1; i < options.arguments.size(); ++i)
    words.push_back(quoted(options.arguments[i]));
  return describe_hosts(options) + fmt::format("command: {}\n", fmt::join(words, " ")) +
         plan.picture + describe_ranks(options, plan) + describe_logs(options);
}

}  // namespace lockstep
