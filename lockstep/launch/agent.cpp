// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/agent.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string_view>
#include <utility>

#include "lockstep/launch/descendants.h"
#include "lockstep/launch/environment.h"
#include "lockstep/launch/ranges.h"
#include "lockstep/launch/topology.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// How long a rank that looks at the job page may take to throw an Error that names the failed
// rank, and to end by itself, before it is told to end.
constexpr std::chrono::milliseconds time_to_throw = 500ms;

// How long the kernel may take to end a killed process; one that is stuck in it never ends.
constexpr std::chrono::milliseconds time_to_die = 5s;

// timeout(1) and others send a signal to us and to our process group: that is one Ctrl-C.
constexpr std::chrono::milliseconds double_signal = 50ms;

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

std::string signal_name(int signal) {
  const char* abbreviation = ::sigabbrev_np(signal);
  return abbreviation != nullptr ? fmt::format("SIG{}", abbreviation)
                                 : fmt::format("signal {}", signal);
}

std::string name_of(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", as_ranges(ranks));
}

int code_of(const Failure& failure) {
  return failure.signal ? 128 + *failure.signal : failure.exit_code.value_or(0);
}

}  // namespace

Agent::Agent(const RunOptions& options, const sigset_t& signals, int lifeline)
    : options_(options),
      job_id_(random_job_id()),
      signals_(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK)),
      lifeline_(lifeline),
      page_(JobPage::create(options.nproc_per_node, job_id_)),
      switchboard_(page_.descriptor()),
      output_(STDOUT_FILENO, STDERR_FILENO, options.log) {
  if (!signals_) throw_errno("signalfd");
}

int Agent::run() {
  int code = start();
  if (code != 0) kill_all();
  while (running_ > 0 && !orphaned_) turn();
  end_descendants(time_to_die);
  if (orphaned_) return 128 + SIGKILL;

  output_.finish();
  if (code == 0) {
    say_why();
    code = exit_code();
  }
  while (output_.pending() && !orphaned_) turn();
  return code;
}

int Agent::start() {
  const int open_files = raise_open_files();
  const BindingPlan plan = plan_binding(options_.nproc_per_node, options_.bind);
  if (options_.verbose) {
    std::istringstream picture(plan.picture);
    for (std::string line; std::getline(picture, line);) output_.say(line);
  }
  std::vector<Process> processes;
  for (int rank = 0; rank < options_.nproc_per_node; ++rank) {
    processes.push_back(start_rank(rank, plan.ranks[static_cast<std::size_t>(rank)], open_files));
    ranks_.push_back({.pid = processes.back().pid()});
    ++running_;
  }
  for (Process& process : processes) {
    const int error_number = process.wait_for_exec();
    if (error_number == 0) continue;
    output_.say(fmt::format("{}: {}", options_.program, std::strerror(error_number)));
    return error_number == ENOENT ? 127 : 126;
  }
  return 0;
}

Process Agent::start_rank(int rank, const RankBinding& binding, int open_files) {
  const Output::Ends ends = output_.add(rank, rank);
  auto [socket, socket_of_rank] = make_socket_pair();
  const FileDescriptor nothing = open_dev_null();
  // A terminal would stop a rank that reads from it: no rank is in the foreground.
  const bool keeps_stdin = rank == 0 && ::isatty(STDIN_FILENO) == 0;

  RankPlace place;
  place.local_rank = rank;
  place.local_world_size = place.round.world_size = options_.nproc_per_node;
  place.round.job_id = job_id_;
  place.round.master_addr = "127.0.0.1";
  place.round.master_port = port_.number();
  place.max_restarts = options_.max_restarts;
  place.error_file = output_.error_file(rank);
  place.agent_fd = socket_of_rank.get();
  place.threads = binding.threads;
  place.columns = output_.columns(rank);
  Process process({.program = options_.program,
                   .arguments = options_.arguments,
                   .environment = environment_of(place, environ),
                   .in = keeps_stdin ? STDIN_FILENO : nothing.get(),
                   .out = ends.out.get(),
                   .err = ends.err.get(),
                   .inherited = {socket_of_rank.get()},
                   .cpus = binding.cpus,
                   .memory_nodes = binding.memory_nodes,
                   .open_files = open_files});
  switchboard_.connect(std::move(socket));
  if (options_.verbose) {
    const char* users_threads = std::getenv("OMP_NUM_THREADS");
    output_.say(fmt::format("rank {}: pid {}, cores {}, OMP_NUM_THREADS={}", rank, process.pid(),
                            as_ranges(binding.cpus.empty() ? affinity_mask() : binding.cpus),
                            users_threads ? users_threads : std::to_string(binding.threads)));
  }
  return process;
}

void Agent::turn() {
  std::vector<pollfd> entries{{signals_.get(), POLLIN, 0}, {lifeline_, POLLIN, 0}};
  output_.watch(entries);
  switchboard_.watch(entries);
  if (::poll(entries.data(), entries.size(), milliseconds_to_next_deadline()) < 0 && errno != EINTR)
    throw_errno("poll");
  if (entries[1].revents != 0) orphaned_ = true;
  output_.serve(entries);
  switchboard_.serve(entries);
  if (entries[0].revents != 0) read_signals();
  act_on_deadlines();
}

int Agent::milliseconds_to_next_deadline() const {
  const Deadline next = std::min({terminate_at_, kill_at_, give_up_at_});
  if (next == no_deadline || running_ == 0) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
  return static_cast<int>(std::max(left, 0ms).count());
}

void Agent::act_on_deadlines() {
  const auto now = Clock::now();
  if (now >= terminate_at_) {
    terminate_at_ = no_deadline;
    kill_at_ = in(options_.shutdown_timeout);
    for (Rank& rank : ranks_) tell(rank, SIGTERM);
  }
  if (now >= kill_at_ && running_ > 0) {
    output_.say(fmt::format("{} did not end within {:g} s of being told to: killed",
                            name_of(running()),
                            std::chrono::duration<double>(options_.shutdown_timeout).count()));
    kill_all();
  }
  if (now >= give_up_at_ && running_ > 0) {
    output_.say(fmt::format("{} cannot be killed: left behind", name_of(running())));
    for (Rank& rank : ranks_) rank.ended = true;
    running_ = 0;
  }
}

void Agent::read_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGCHLD)
      reap();
    else
      on_stop_signal(static_cast<int>(info.ssi_signo));
  }
}

// A rank is reaped only after its failure is in the job page: until then its pid is its own.
void Agent::reap() {
  siginfo_t end{};
  while (::waitid(P_ALL, 0, &end, WEXITED | WNOHANG | WNOWAIT) == 0 && end.si_pid != 0) {
    const auto rank = std::find_if(ranks_.begin(), ranks_.end(), [&](const Rank& candidate) {
      return candidate.pid == end.si_pid && !candidate.ended;
    });
    if (rank != ranks_.end()) on_end(static_cast<int>(rank - ranks_.begin()), end);
    ::waitpid(end.si_pid, nullptr, 0);
    end = {};
  }
}

void Agent::on_end(int number, const siginfo_t& end) {
  Rank& rank = ranks_[static_cast<std::size_t>(number)];
  rank.ended = true;
  --running_;
  Failure failure = page_.examine(number);  // What it was doing. How it ended we know better.
  failure.pid = rank.pid;
  failure.signal = failure.exit_code = std::nullopt;
  (end.si_code == CLD_EXITED ? failure.exit_code : failure.signal) = end.si_status;
  const bool succeeded = failure.exit_code == 0;
  rank.failed = !succeeded && !rank.told;

  if (first_ && first_->rank == number && !first_->signal && !first_->exit_code) first_ = failure;
  if (stopping()) return;
  if (!succeeded)
    on_failure(failure);
  else if (page_.phase(number) != JobPage::Phase::finished)
    // The others may be done as well, so they are not told to end. But a collective that waits
    // for this rank, or ever will, must throw.
    page_.report(failure);
}

void Agent::on_failure(const Failure& failure) {
  page_.report(failure);
  // A rank may have been seen to die by its peers, and they to fail, before we could reap it.
  first_ = page_.failure();
  if (!first_ || first_->rank == failure.rank) first_ = failure;
  code_of_first_end_ = code_of(failure);
  for (const int rank : running())
    if (!attached(rank)) tell(ranks_[static_cast<std::size_t>(rank)], SIGTERM);
  terminate_at_ = in(any_attached(running()) ? time_to_throw : 0ms);
}

void Agent::on_stop_signal(int signal) {
  const auto now = Clock::now();
  const bool again = now - last_interrupt_ > double_signal;
  if (signal == SIGINT) last_interrupt_ = now;
  if (running_ == 0) {
    output_.drop();
  } else if (!stopping()) {
    stopped_by_ = signal;
    for (Rank& rank : ranks_) tell(rank, signal == SIGINT ? SIGINT : SIGTERM);
    kill_at_ = in(options_.shutdown_timeout);
  } else if (signal == SIGINT && again) {
    kill_all();
  }
}

// A rank that is attached looks at the job page, or has just left it to an exception.
bool Agent::attached(int rank) const {
  const JobPage::Phase phase = page_.phase(rank);
  return phase == JobPage::Phase::alive || phase == JobPage::Phase::abandoned;
}

bool Agent::any_attached(const std::vector<int>& ranks) const {
  return std::any_of(ranks.begin(), ranks.end(), [this](int rank) { return attached(rank); });
}

// Each rank leads a process group of its own, in which its own children are as well.
void Agent::tell(Rank& rank, int signal) {
  if (rank.ended || (rank.told && signal != SIGKILL)) return;
  if (::kill(-rank.pid, signal) != 0) ::kill(rank.pid, signal);
  ::kill(-rank.pid, SIGCONT);  // A stopped process would not act on it.
  rank.told = true;
}

void Agent::kill_all() {
  terminate_at_ = kill_at_ = no_deadline;
  give_up_at_ = in(time_to_die);
  for (Rank& rank : ranks_) tell(rank, SIGKILL);
}

std::vector<int> Agent::running() const {
  std::vector<int> numbers;
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    if (!ranks_[i].ended) numbers.push_back(static_cast<int>(i));
  return numbers;
}

void Agent::say_why() {
  if (stopped_by_)
    return output_.say(
        fmt::format("stopped by {}; exit code {}", signal_name(*stopped_by_), exit_code()));
  if (!first_) return;
  // Only of a rank that was attached can it be said that it left without saying so.
  output_.say(first_->exit_code && !attached(first_->rank)
                  ? fmt::format("rank {} (pid {} on {}) exited with code {}", first_->rank,
                                first_->pid, first_->host, *first_->exit_code)
                  : describe(*first_));

  std::vector<int> others;
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    if (ranks_[i].failed && static_cast<int>(i) != first_->rank)
      others.push_back(static_cast<int>(i));
  output_.say((others.empty() ? "" : fmt::format("then {} failed too; ", name_of(others))) +
              fmt::format("exit code {}", exit_code()));
}

int Agent::exit_code() const {
  if (stopped_by_) return 128 + *stopped_by_;
  if (!first_) return 0;
  // A rank that left too early with code 0 is a failure all the same.
  const int code = code_of(*first_);
  return code != 0 ? code : code_of_first_end_;
}

}  // namespace lockstep
