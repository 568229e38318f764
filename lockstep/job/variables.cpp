// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/variables.h"

#include <fmt/format.h>

#include <charconv>

#include "lockstep/base/error.h"
#include "lockstep/base/variables.h"
#include "lockstep/job/store/tcp_socket.h"

namespace lockstep::job {

std::optional<std::string> Variables::text(const char* key) const {
  const char* const found = accept_variable(key, lookup_(key));
  return found == nullptr ? std::nullopt : std::optional<std::string>(found);
}

template <class Number>
std::optional<Number> Variables::parsed(const char* key) const {
  const auto digits = text(key);
  if (!digits) return std::nullopt;
  Number value = 0;
  const char* end = digits->data() + digits->size();
  const auto [stop, problem] = std::from_chars(digits->data(), end, value);
  require(problem == std::errc() && stop == end,
          [&] { return fmt::format("{}='{}' is not a whole number", key, *digits); });
  return value;
}

std::optional<int> Variables::number(const char* key) const { return parsed<int>(key); }

std::optional<std::uint64_t> Variables::id(const char* key) const {
  return parsed<std::uint64_t>(key);
}

namespace {

std::optional<int> take_number(std::string_view& text) {
  int value = 0;
  const auto [stop, problem] = std::from_chars(text.begin(), text.end(), value);
  if (problem != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(stop - text.begin()));
  return value;
}

bool take(std::string_view& text, std::string_view what) {
  if (!text.starts_with(what)) return false;
  text.remove_prefix(what.size());
  return true;
}

std::optional<std::string> first_set(const Variables& variables,
                                     std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (auto text = variables.text(key)) return text;
  return std::nullopt;
}

}  // namespace

int job_port(std::uint64_t job, std::uint64_t step) {
  constexpr std::uint64_t ports = job_ports;  // A prime: multiples of 61 differ.
  return first_job_port + static_cast<int>((job % ports * 61 + step % ports) % ports);
}

std::string first_of_node_list(std::string_view list) {
  std::string name;
  for (std::size_t at = 0; at < list.size() && list[at] != ','; ++at) {
    if (list[at] != '[') {
      name += list[at];
      continue;
    }
    const std::size_t end = list.find(']', at);
    require(end != list.npos, [&] {
      return fmt::format("'{}' is not a list of nodes: a bracket is not closed", list);
    });
    const std::string_view range = list.substr(at + 1, end - at - 1);
    name += range.substr(0, range.find_first_of(",-"));
    at = end;
  }
  require(!name.empty(), [&] { return fmt::format("'{}' does not begin with a node", list); });
  return name;
}

int tasks_on_node(std::string_view tasks_per_node, int node) {
  const auto refuse = [&](std::string_view why) {
    throw Error(Fault::misuse,
                fmt::format("'{}' is not a list of tasks per node, such as 2(x3),1: {}",
                            tasks_per_node, why));
  };
  std::string_view rest = tasks_per_node;
  for (int seen = 0; !rest.empty();) {
    const auto tasks = take_number(rest);
    std::optional<int> nodes = 1;
    if (tasks && take(rest, "(x")) {
      nodes = take_number(rest);
      if (!take(rest, ")")) nodes.reset();
    }
    if (!tasks || !nodes || *tasks < 1 || *nodes < 1 || (!take(rest, ",") && !rest.empty()))
      refuse("a number is missing or too small");
    if (node - seen < *nodes) return *tasks;
    seen += *nodes;
  }
  refuse(fmt::format("it has no entry for node {}", node));
  return 0;
}

std::optional<int> slurm_local_world_size(const Variables& variables) {
  const auto tasks = first_set(variables, {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  const auto node = variables.number("SLURM_NODEID");
  if (!tasks || !node) return variables.number("SLURM_NTASKS_PER_NODE");
  require(*node >= 0, [&] { return fmt::format("SLURM_NODEID={} is negative", *node); });
  return tasks_on_node(*tasks, *node);
}

std::optional<int> slurm_port(const Variables& variables) {
  if (const auto reserved = variables.text("SLURM_STEP_RESV_PORTS")) {
    std::string_view rest = *reserved;
    const auto first = take_number(rest);
    require(first && *first > 0 && *first <= 65535, [&] {
      return fmt::format("SLURM_STEP_RESV_PORTS='{}' does not begin with a port", *reserved);
    });
    return first;
  }
  const auto job = variables.id("SLURM_JOB_ID");
  if (!job) return std::nullopt;
  return job_port(*job, variables.id("SLURM_STEP_ID").value_or(0));
}

std::string slurm_master(const Variables& variables) {
  const auto nodes = first_set(variables, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"});
  const auto port = slurm_port(variables);
  return nodes && port ? to_text(first_of_node_list(*nodes), *port) : std::string();
}

}  // namespace lockstep::job
