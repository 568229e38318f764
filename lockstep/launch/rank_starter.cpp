// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/rank_starter.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/environment.h"

namespace lockstep {
namespace {

// Each needs a descriptor until its program runs.
constexpr std::size_t most_starting = 32;

std::pair<FileDescriptor, FileDescriptor> make_socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) throw_errno("socketpair");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

FileDescriptor open_dev_null() {
  FileDescriptor fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!fd) throw_errno("/dev/null");
  return fd;
}

}  // namespace

RankStarter::RankStarter(const RunOptions& options, const Round& round, const BindingPlan& binding,
                         Output& output)
    : options_(options), round_(round), binding_(binding), output_(output) {}

StartedRank RankStarter::start(int local_rank) {
  static const int open_files = raise_open_files();
  if (starting_.size() == most_starting) wait_for_first();
  auto [socket, socket_of_rank] = make_socket_pair();
  const FileDescriptor nothing = open_dev_null();
  const RankBinding& bound = binding_.ranks[static_cast<std::size_t>(local_rank)];
  const int rank = round_.first_rank + local_rank;
  // A terminal would stop a rank that reads from it, because no rank is in the foreground. After a
  // restart, input that an earlier attempt has read is gone.
  const bool keeps_stdin = rank == 0 && round_.attempt == 0 && ::isatty(STDIN_FILENO) == 0;
  const Output::Ends ends = output_.add(rank, local_rank);
  ErrorFile error_file(output_.error_file(local_rank));

  RankPlace place;
  place.local_rank = local_rank;
  place.local_world_size = options_.nproc_per_node;
  place.round = round_;
  place.max_restarts = options_.max_restarts;
  place.error_file = error_file.path();
  place.agent_fd = socket_of_rank.get();
  place.threads = bound.threads;
  place.columns = output_.columns(rank);

  std::vector<int> inherited{socket_of_rank.get()};
  if (error_file.descriptor() >= 0) inherited.push_back(error_file.descriptor());
  const Process& process =
      starting_.emplace_back(Command{.program = options_.program,
                                     .arguments = options_.arguments,
                                     .environment = environment_of(place, environ),
                                     .in = keeps_stdin ? STDIN_FILENO : nothing.get(),
                                     .out = ends.out.get(),
                                     .err = ends.err.get(),
                                     .inherited = inherited,
                                     .cpus = bound.cpus,
                                     .memory_nodes = bound.memory_nodes,
                                     .open_files = open_files});
  if (options_.verbose) say_where(local_rank, process.pid());
  return {process.pid(), std::move(socket), std::move(error_file)};
}

void RankStarter::wait() {
  while (!starting_.empty()) wait_for_first();
}

// Closes its descriptor for that, too.
void RankStarter::wait_for_first() {
  const int error_number = starting_.front().wait_for_exec();
  starting_.pop_front();
  if (error_number == 0 || error_ != 0) return;
  output_.say(fmt::format("{}: {}", options_.program, std::strerror(error_number)), Level::error);
  error_ = error_number == ENOENT ? exit_not_found : exit_not_executable;
}

void RankStarter::say_where(int local_rank, pid_t pid) const {
  const RankBinding& bound = binding_.ranks[static_cast<std::size_t>(local_rank)];
  const char* users_threads = std::getenv("OMP_NUM_THREADS");
  output_.say(fmt::format("rank {}: pid {}, {}, OMP_NUM_THREADS={}", round_.first_rank + local_rank,
                          pid, bound.cpus.empty() ? "not bound" : "cores " + as_ranges(bound.cpus),
                          users_threads ? users_threads : std::to_string(bound.threads)));
}

}  // namespace lockstep
