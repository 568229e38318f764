// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/rank_starter.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::launch {
namespace {

using VariableMap = std::map<std::string, std::string, std::less<>>;

VariableMap parse(const char* const* environment) {
  VariableMap variables;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const auto equals = entry.find('=');
    if (equals != entry.npos) variables.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return variables;
}

// A host is a torchrun node; all ranks have one role.
VariableMap torchrun_variables(const RankPlace& place) {
  const Round& round = place.round;
  const std::string rank = std::to_string(round.first_rank + place.local_rank);
  const std::string world_size = std::to_string(round.world_size);
  return {{"RANK", rank},
          {"LOCAL_RANK", std::to_string(place.local_rank)},
          {"ROLE_RANK", rank},
          {"WORLD_SIZE", world_size},
          {"LOCAL_WORLD_SIZE", std::to_string(place.local_world_size)},
          {"ROLE_WORLD_SIZE", world_size},
          {"ROLE_NAME", "default"},
          {"GROUP_RANK", std::to_string(round.node)},
          {"GROUP_WORLD_SIZE", std::to_string(round.nodes)},
          {"MASTER_ADDR", round.master_addr},
          {"MASTER_PORT", std::to_string(round.master_port)},
          {"TORCHELASTIC_RESTART_COUNT", std::to_string(round.restarts)},
          {"TORCHELASTIC_MAX_RESTARTS", std::to_string(place.max_restarts)},
          {"TORCHELASTIC_RUN_ID", round.job_id},
          {"TORCHELASTIC_ERROR_FILE", place.error_file},
          // With True, c10d would expect the launcher to listen on MASTER_PORT.
          {"TORCHELASTIC_USE_AGENT_STORE", "False"}};
}

// On a busy host, spinning OpenMP threads take the cores that the last thread needs:
// docs/launcher.md.
void set_spin_count(VariableMap& variables) {
  if (!variables.contains("OMP_WAIT_POLICY")) variables.emplace("GOMP_SPINCOUNT", "10000");
}

// By default glibc returns a step's memory to the kernel, which clears every page again: a fifth of
// the step at large batches. Huge pages need glibc 2.35.
void set_malloc(VariableMap& variables) {
  const auto is_mallocs = [](const auto& entry) {
    return entry.first.starts_with("MALLOC_") || entry.first == "GLIBC_TUNABLES";
  };
  if (std::any_of(variables.begin(), variables.end(), is_mallocs)) return;
  variables.emplace("MALLOC_MMAP_THRESHOLD_", std::to_string(std::int64_t{1} << 30));
  variables.emplace("MALLOC_TRIM_THRESHOLD_", std::to_string(std::int64_t{1} << 40));
  variables.emplace("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
}

// Each uses a descriptor until its program runs.
constexpr std::size_t most_starting = 32;

std::pair<FileDescriptor, FileDescriptor> make_socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    throw_errno("making a rank's connection: socketpair");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

FileDescriptor open_dev_null() {
  FileDescriptor fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!fd) throw_errno("opening /dev/null");
  return fd;
}

std::string hint_of(int error, const std::string& program) {
  if (error == ENOENT && ::access(program.c_str(), F_OK) == 0)
    return "; the file exists, but the interpreter that it names does not";
  if (error != ENOEXEC) return {};
  std::string begin(4, '\0');
  std::ifstream(program, std::ios::binary).read(begin.data(), 4);
  if (begin ==
      "\x7F"
      "ELF")
    return "; it is a program for another kind of processor";
  if (program.ends_with(".py"))
    return "; put `python3` before it, or make #!/usr/bin/env python3 its first line";
  return "; a script needs a first line with its interpreter, such as #!/bin/sh";
}

}  // namespace

std::string describe(const StartFailure& failure, int rank, const std::string& program) {
  const std::string reason = std::generic_category().message(failure.error);
  if (!failure.is_of_program())
    return fmt::format("the system refused to start rank {} ({}): {}", rank, failure.function,
                       reason);
  return fmt::format("executing {}: {}{}", program, reason, hint_of(failure.error, program));
}

int exit_code_of(const StartFailure& failure) {
  if (!failure.is_of_program()) return exit_system;
  return failure.error == ENOENT ? exit_not_found : exit_not_executable;
}

RankPlace place_of(const RunOptions& options, int local_rank, int threads) {
  return {.local_rank = local_rank,
          .local_world_size = options.nproc_per_node,
          .max_restarts = options.max_restarts,
          .continues = options.on_failure == OnFailure::continue_without,
          .straggler_limit = options.leave_out_stragglers,
          .threads = threads};
}

std::vector<std::string> environment_of(const RankPlace& place, const char* const* inherited) {
  VariableMap variables = parse(inherited);
  for (auto& [key, value] : torchrun_variables(place)) variables.insert_or_assign(key, value);
  variables.emplace("OMP_NUM_THREADS", std::to_string(place.threads));
  set_spin_count(variables);
  set_malloc(variables);
  for (const char* secret : {"LOCKSTEP_JOB_TOKEN", "LOCKSTEP_JOB_TOKEN_FILE"})
    variables.erase(secret);  // A rank's agent passes it.
  variables.insert_or_assign("LOCKSTEP_JOB_ID", place.round.job_id);
  variables.insert_or_assign("LOCKSTEP_ATTEMPT", std::to_string(place.round.attempt));
  // For programs that other launchers start.
  variables.erase("LOCKSTEP_LAUNCHER");
  variables.erase("LOCKSTEP_STORE");
  if (!place.round.store.empty()) variables.emplace("LOCKSTEP_STORE", place.round.store);
  // Two of these are also the launcher's variables for its options.
  variables.erase("LOCKSTEP_ON_FAILURE");
  if (place.continues) variables.emplace("LOCKSTEP_ON_FAILURE", "continue");
  variables.erase("LOCKSTEP_LEAVE_OUT_STRAGGLERS");
  variables.erase("LOCKSTEP_STRAGGLER_MS");
  if (place.straggler_limit)
    variables.emplace("LOCKSTEP_STRAGGLER_MS", std::to_string(place.straggler_limit->count()));
  variables.erase("LOCKSTEP_INCARNATION");
  if (place.incarnation > 0)
    variables.emplace("LOCKSTEP_INCARNATION", std::to_string(place.incarnation));
  variables.insert_or_assign("LOCKSTEP_AGENT_FD", std::to_string(place.agent_fd));
  variables.erase("LOCKSTEP_TERMINAL");
  if (place.columns) variables.emplace("LOCKSTEP_TERMINAL", std::to_string(*place.columns));

  std::vector<std::string> environment;
  for (const auto& [key, value] : variables) environment.push_back(key + "=" + value);
  return environment;
}

RankStarter::RankStarter(const RunOptions& options, const Round& round, const BindingPlan& binding,
                         Output& output)
    : options_(options), round_(round), binding_(binding), output_(output) {}

StartedRank RankStarter::start(int local_rank, int incarnation) {
  static const int open_files = raise_open_files();
  if (starting_.size() == most_starting) wait_for_first();
  auto [socket, socket_of_rank] = make_socket_pair();
  const FileDescriptor nothing = open_dev_null();
  const RankBinding& bound = binding_.ranks[static_cast<std::size_t>(local_rank)];
  const int rank = round_.first_rank + local_rank;
  // A terminal would stop a reading rank, because no rank is in the foreground. A restarted rank
  // would miss input that an earlier process has read.
  const bool keeps_stdin =
      rank == 0 && round_.attempt == 0 && incarnation == 0 && ::isatty(STDIN_FILENO) == 0;
  const Output::Ends ends = output_.add(rank, local_rank, incarnation);
  ErrorFile error_file(output_.error_file(local_rank, incarnation));

  RankPlace place = place_of(options_, local_rank, bound.threads);
  place.round = round_;
  place.incarnation = incarnation;
  place.error_file = error_file.path();
  place.agent_fd = socket_of_rank.get();
  place.columns = output_.columns(rank);

  std::vector<int> inherited{socket_of_rank.get()};
  if (error_file.descriptor() >= 0) inherited.push_back(error_file.descriptor());
  const Process& process =
      starting_
          .emplace_back(Starting{rank, Process({.program = options_.program,
                                                .arguments = options_.arguments,
                                                .environment = environment_of(place, environ),
                                                .in = keeps_stdin ? STDIN_FILENO : nothing.get(),
                                                .out = ends.out.get(),
                                                .err = ends.err.get(),
                                                .inherited = inherited,
                                                .cpus = bound.cpus,
                                                .memory_nodes = bound.memory_nodes,
                                                .open_files = open_files})})
          .process;
  if (options_.verbose) say_where(local_rank, process.pid());
  return {process.pid(), std::move(socket), std::move(error_file)};
}

void RankStarter::wait() {
  while (!starting_.empty()) wait_for_first();
}

void RankStarter::wait_for_first() {
  Starting first = std::move(starting_.front());
  starting_.pop_front();
  const StartFailure failure = first.process.wait_for_exec();
  if (!failure || error_ != 0) return;
  output_.say(describe(failure, first.rank, options_.program), Level::error);
  error_ = exit_code_of(failure);
}

void RankStarter::say_where(int local_rank, pid_t pid) const {
  const RankBinding& bound = binding_.ranks[static_cast<std::size_t>(local_rank)];
  const char* users_threads = std::getenv("OMP_NUM_THREADS");
  output_.say(fmt::format("rank {}: pid {}, {}, OMP_NUM_THREADS={}", round_.first_rank + local_rank,
                          pid, bound.cpus.empty() ? "not bound" : "cores " + as_ranges(bound.cpus),
                          users_threads ? users_threads : std::to_string(bound.threads)));
}

}  // namespace lockstep::launch
