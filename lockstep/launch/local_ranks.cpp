// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/local_ranks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "lockstep/base/exit_code.h"
#include "lockstep/base/ranges.h"
#include "lockstep/job/agent_line.h"
#include "lockstep/launch/environment.h"
#include "lockstep/launch/signals.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// How long a rank that looks at the job page may take to throw an Error that names the failed
// rank, and to end by itself, before it is told to end.
constexpr std::chrono::milliseconds time_to_throw = 500ms;

// How long the kernel may take to end a killed process; one that is stuck in it never ends.
constexpr std::chrono::milliseconds time_to_die = 5s;

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

int code_of(const Failure& failure) {
  return failure.signal ? 128 + *failure.signal : failure.exit_code.value_or(0);
}

// Nothing more will become known of it.
bool is_complete(const Failure& failure) {
  return failure.signal || failure.exit_code || failure.fault;
}

}  // namespace

LocalRanks::LocalRanks(const RunOptions& options, const Round& round, const BindingPlan& binding,
                       const std::optional<JobToken>& token, Output& output)
    : options_(options),
      round_(round),
      binding_(binding),
      output_(output),
      page_(JobPage::create(options.nproc_per_node, round.job_id, round.world_size)),
      switchboard_(page_.descriptor()),
      patience_(options.shutdown_timeout) {
  if (!round.store.empty()) switchboard_.publish(job_token_key, share_job_token(token));
  static const int open_files = raise_open_files();
  std::deque<Process> starting;
  for (int rank = 0; rank < options_.nproc_per_node && start_error_ == 0; ++rank) {
    if (starting.size() == most_starting) wait_for(starting);
    starting.push_back(start_rank(rank, open_files));
  }
  while (!starting.empty()) wait_for(starting);
  if (start_error_ != 0) kill_all();
}

// For the first of them, whose descriptor for that is then closed.
void LocalRanks::wait_for(std::deque<Process>& starting) {
  const int error_number = starting.front().wait_for_exec();
  starting.pop_front();
  if (error_number == 0 || start_error_ != 0) return;
  output_.say(fmt::format("{}: {}", options_.program, std::strerror(error_number)), Level::error);
  start_error_ = error_number == ENOENT ? exit_not_found : exit_not_executable;
}

Process LocalRanks::start_rank(int local_rank, int open_files) {
  auto [socket, socket_of_rank] = make_socket_pair();
  const FileDescriptor nothing = open_dev_null();
  const RankBinding& bound = binding_.ranks[static_cast<std::size_t>(local_rank)];
  // A terminal would stop a rank that reads from it: no rank is in the foreground. What an earlier
  // attempt has read is gone.
  const bool keeps_stdin =
      number(local_rank) == 0 && round_.attempt == 0 && ::isatty(STDIN_FILENO) == 0;
  const Output::Ends ends = output_.add(number(local_rank), local_rank);
  ErrorFile error_file(output_.error_file(local_rank));

  RankPlace place;
  place.local_rank = local_rank;
  place.local_world_size = options_.nproc_per_node;
  place.round = round_;
  place.max_restarts = options_.max_restarts;
  place.error_file = error_file.path();
  place.agent_fd = socket_of_rank.get();
  place.threads = bound.threads;
  place.columns = output_.columns(number(local_rank));

  std::vector<int> inherited{socket_of_rank.get()};
  if (error_file.descriptor() >= 0) inherited.push_back(error_file.descriptor());
  Process process({.program = options_.program,
                   .arguments = options_.arguments,
                   .environment = environment_of(place, environ),
                   .in = keeps_stdin ? STDIN_FILENO : nothing.get(),
                   .out = ends.out.get(),
                   .err = ends.err.get(),
                   .inherited = inherited,
                   .cpus = bound.cpus,
                   .memory_nodes = bound.memory_nodes,
                   .open_files = open_files});
  switchboard_.connect(std::move(socket));
  ranks_.push_back({.pid = process.pid(), .error_file = std::move(error_file)});
  ++running_;
  if (options_.verbose) say_where(local_rank, process.pid());
  return process;
}

void LocalRanks::say_where(int local_rank, pid_t pid) const {
  const RankBinding& bound = binding_.ranks[static_cast<std::size_t>(local_rank)];
  const char* users_threads = std::getenv("OMP_NUM_THREADS");
  output_.say(fmt::format("rank {}: pid {}, {}, OMP_NUM_THREADS={}", number(local_rank), pid,
                          bound.cpus.empty() ? "not bound" : "cores " + as_ranges(bound.cpus),
                          users_threads ? users_threads : std::to_string(bound.threads)));
}

void LocalRanks::serve(const std::vector<pollfd>& entries) {
  switchboard_.serve(entries);
  auto fd = switchboard_.take(session_page_key);
  if (!fd) return;
  try {
    JobPage page = JobPage::attach(std::move(*fd));
    if (page.slots() == round_.world_size) session_page_.emplace(std::move(page));
  } catch (const Error& error) {  // What a rank sends must not end its agent.
    output_.say(
        fmt::format("a job page that no rank of ours has made is not used: {}", error.what()));
  }
}

Deadline LocalRanks::deadline() const {
  if (running_ == 0) return lingering() ? std::min(kill_at_, in(50ms)) : no_deadline;
  return std::min({terminate_at_, kill_at_, give_up_at_});
}

bool LocalRanks::lingering() const {
  if (kill_at_ == no_deadline || Clock::now() >= kill_at_) return false;
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const Rank& rank) { return rank.told && ::kill(-rank.pid, 0) == 0; });
}

void LocalRanks::act_on_deadlines() {
  if (running_ == 0) return;
  const auto now = Clock::now();
  if (now >= terminate_at_) end(SIGTERM, patience_);
  if (now >= kill_at_) {
    output_.say(fmt::format("{} did not end within {:g} s of being told to: killed",
                            names_of_left(), std::chrono::duration<double>(patience_).count()),
                Level::error);
    kill_all();
  }
  if (now >= give_up_at_) {
    output_.say(fmt::format("{} cannot be killed: left behind", names_of_left()), Level::error);
    for (Rank& rank : ranks_) rank.ended = true;
    running_ = 0;
  }
}

// A rank is reaped only after its failure is in the job page: until then its pid is its own.
void LocalRanks::reap() {
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

// What it was doing; how it ended its caller knows better.
Failure LocalRanks::examine(int local_rank) const {
  const Rank& rank = ranks_[static_cast<std::size_t>(local_rank)];
  Failure failure = page().examine(slot(local_rank));
  failure.rank = number(local_rank);
  failure.pid = rank.pid;
  if (failure.what.empty()) failure.what = rank.error_file.message();
  return failure;
}

void LocalRanks::on_end(int local_rank, const siginfo_t& end) {
  Rank& rank = ranks_[static_cast<std::size_t>(local_rank)];
  rank.ended = true;
  --running_;
  Failure failure = examine(local_rank);
  const bool killed = end.si_code != CLD_EXITED;
  failure.signal = killed ? std::optional(end.si_status) : std::nullopt;
  failure.exit_code = killed ? std::nullopt : std::optional(end.si_status);
  const bool succeeded = failure.exit_code == 0;
  rank.preempted = failure.exit_code == exit_preempted && page().preemption_agreed();
  rank.failed = !succeeded && !rank.preempted && !rank.told;

  if (failure.signal == SIGKILL && !failure.oom) failure.oom = page().oom_killed();

  if (first_ && first_->rank == failure.rank && !is_complete(*first_) && !rank.told) {
    failure.detected_by = first_->detected_by;
    first_ = failure;
  }
  if (ending_) return;
  if (rank.failed)
    on_failure(local_rank, failure);
  else if (!rank.preempted && page().phase(slot(local_rank)) != JobPage::Phase::finished)
    // The others may be done as well, so they are not told to end. But a collective that waits
    // for this rank, or ever will, must throw.
    page().report(page().cause_of(slot(local_rank), failure));
}

void LocalRanks::on_failure(int local_rank, const Failure& failure) {
  code_of_first_end_ = code_of(failure);
  page().report(page().cause_of(slot(local_rank), failure));
  // A rank may have been seen to die by its peers, and they to fail, before we could reap it.
  std::optional<Failure> first = page().failure();
  if (first && !first->fault && first->rank == failure.rank) {
    const int detected_by = first->detected_by;
    first = failure;
    first->detected_by = detected_by;
  }
  end_after(first.value_or(failure));
}

void LocalRanks::end_after(const Failure& failure) {
  if (ending_) return;
  ending_ = true;
  first_ = failure;
  page().report(failure);
  noticed_after_ = page().since_failure();
  bool any_attached = false;
  for (const int rank : left()) {
    if (attached(rank))
      any_attached = true;
    else
      tell(ranks_[static_cast<std::size_t>(rank)], SIGTERM);
  }
  terminate_at_ = in(any_attached ? time_to_throw : 0ms);
}

void LocalRanks::end(int signal, std::chrono::milliseconds patience) {
  if (give_up_at_ != no_deadline) return;  // They have been killed.
  ending_ = true;
  terminate_at_ = no_deadline;
  patience_ = patience;
  kill_at_ = in(patience);
  for (Rank& rank : ranks_) tell(rank, signal);
}

void LocalRanks::kill_all() {
  ending_ = true;
  terminate_at_ = kill_at_ = no_deadline;
  give_up_at_ = in(time_to_die);
  for (Rank& rank : ranks_) tell(rank, SIGKILL);
}

// Each rank leads a process group of its own, in which its own children are as well.
void LocalRanks::tell(Rank& rank, int signal) {
  if (rank.ended || (rank.told && signal != SIGKILL)) return;
  if (::kill(-rank.pid, signal) != 0) ::kill(rank.pid, signal);
  ::kill(-rank.pid, SIGCONT);  // A stopped process would not act on it.
  rank.told = true;
}

bool LocalRanks::pass_on(int signal) {
  bool any = false;
  for (const int rank : left()) {
    const pid_t started = ranks_[static_cast<std::size_t>(rank)].pid;
    // Behind a shell script, say, it is another process that has joined the group.
    const pid_t joined = attached(rank) ? page().pid(slot(rank)) : started;
    for (const pid_t pid : std::set{started, joined}) {
      if (!catches(pid, signal)) continue;
      ::kill(pid, signal);
      any = true;
    }
  }
  return any;
}

bool LocalRanks::expect_preemption() const {
  const std::vector<int> ranks = left();
  return !ranks.empty() && std::all_of(ranks.begin(), ranks.end(), [this](int rank) {
    return page().expects_preemption(slot(rank));
  });
}

// A rank that is attached looks at the job page, or has just left it to an exception.
bool LocalRanks::attached(int local_rank) const {
  const JobPage::Phase phase = page().phase(slot(local_rank));
  return phase == JobPage::Phase::alive || phase == JobPage::Phase::abandoned;
}

bool LocalRanks::is_local(int number) const {
  return local_rank(number) >= 0 && local_rank(number) < options_.nproc_per_node;
}

bool LocalRanks::was_attached(const Failure& failure) const {
  return !is_local(failure.rank) || attached(local_rank(failure.rank));
}

std::vector<int> LocalRanks::left() const {
  std::vector<int> local_ranks;
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    if (!ranks_[i].ended) local_ranks.push_back(static_cast<int>(i));
  return local_ranks;
}

std::string LocalRanks::names_of_left() const {
  std::vector<int> numbers = left();
  for (int& rank : numbers) rank = number(rank);
  return name_of_ranks(numbers);
}

std::vector<int> LocalRanks::also_failed() const {
  std::vector<int> numbers;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const int rank = number(static_cast<int>(i));
    if (ranks_[i].failed && (!first_ || rank != first_->rank)) numbers.push_back(rank);
  }
  return numbers;
}

int LocalRanks::exit_code() const {
  if (start_error_ != 0) return start_error_;
  if (!first_) return 0;
  // A rank that left too early with code 0 is a failure all the same.
  const int code = code_of(*first_);
  return code != 0 ? code : code_of_first_end_;
}

Outcome LocalRanks::outcome() const {
  if (start_error_ != 0) return Outcome::stopped;  // It would not help to start it anew.
  if (first_) return exit_code() == exit_preempted ? Outcome::preempted : Outcome::failed;
  const bool preempted =
      std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.preempted; });
  return preempted ? Outcome::preempted : Outcome::succeeded;
}

std::vector<RankStatus> LocalRanks::status() const {
  std::vector<RankStatus> ranks;
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    RankStatus status = status_of(page(), slot(rank), session_page_ ? 0 : round_.first_rank);
    status.pid = ranks_[static_cast<std::size_t>(rank)].pid;
    if (ranks_[static_cast<std::size_t>(rank)].ended)
      status.state = "ended";
    else if (status.state == "starting" && is_stopped(status.pid))
      status.state = "stopped";
    status.bound_to = as_ranges(binding_.ranks[static_cast<std::size_t>(rank)].cpus);
    ranks.push_back(std::move(status));
  }
  return ranks;
}

}  // namespace lockstep
