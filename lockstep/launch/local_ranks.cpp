// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/local_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/text.h"
#include "lockstep/job/host_link.h"
#include "lockstep/launch/failure_report.h"
#include "lockstep/launch/process.h"
#include "lockstep/launch/rank_starter.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;

// For a rank in a group to throw an Error about the failed rank and exit before a signal.
constexpr std::chrono::milliseconds time_to_throw = 500ms;

// Whether `end` is a shell's exit code for the signal `seen` by peers, whose record has more
// details.
bool is_shells_report(const Failure& end, const Failure& seen) {
  return seen.signal && end.exit_code == 128 + *seen.signal;
}

}  // namespace

LocalRanks::LocalRanks(const RunOptions& options, const Round& round, const BindingPlan& binding,
                       const std::optional<JobToken>& token, Output& output)
    : options_(options),
      round_(round),
      binding_(binding),
      output_(output),
      pages_(options.nproc_per_node, round),
      broker_(pages_.own_descriptor()) {
  if (!round.store.empty()) broker_.publish(job_token_key, share_job_token(token));
  RankStarter starter(options_, round_, binding_, output_);
  for (int rank = 0; rank < options_.nproc_per_node && starter.error() == 0; ++rank) {
    StartedRank started = starter.start(rank);
    broker_.connect(std::move(started.socket));
    processes_.add(started.pid);
    error_files_.push_back(std::move(started.error_file));
  }
  starter.wait();
  if (options.on_failure == OnFailure::continue_without)
    continuation_.emplace(options_, Clock::now());
  if (starter.error() == 0) return;
  result_.fail_to_start(starter.error());
  kill_all();
}

// If the system refuses, the rank waits for another start.
void LocalRanks::replace(int local_rank) try {
  pages_.renew(local_rank);
  RankStarter starter(options_, round_, binding_, output_);
  StartedRank started = starter.start(local_rank, continuation_->incarnation(local_rank));
  processes_.replace(local_rank, started.pid);
  broker_.connect(std::move(started.socket));
  error_files_[static_cast<std::size_t>(local_rank)] = std::move(started.error_file);
  starter.wait();
  // The starter has reported why. If the system refused, the process's exit is the next failure.
  const bool is_of_program = starter.error() != 0 && starter.error() != exit_system;
  if (is_of_program) continuation_->stop("its program cannot be executed any more");
} catch (const Error& error) {
  const std::string name = name_of_ranks({pages_.number(local_rank)});
  const bool runs = !processes_.has_ended(local_rank);
  if (runs) processes_.kill_group(local_rank);
  output_.say(fmt::format("warning: {} could not be started again: {}{}", name, bare_text(error),
                          runs ? "" : "; " + continuation_->retry(local_rank, name, Clock::now())),
              Level::error);
}

void LocalRanks::serve(const std::vector<pollfd>& entries) {
  broker_.serve(entries);
  // After a failure, a new group's page has other rank numbers.
  const bool is_later = continuation_ && pages_.has_session_page();
  try {
    FileDescriptor fd = broker_.take(session_page_key);
    if (!fd) return;
    is_later ? pages_.show_later_group(std::move(fd)) : pages_.use_session_page(std::move(fd));
  } catch (const Error& error) {  // A rank's message must not end its agent.
    output_.say(fmt::format("a rank's job control block is not used: {}", error.what()));
  }
}

Deadline LocalRanks::deadline() const {
  if (aborted_ && !ending()) return std::min(aborted_->until, termination_.deadline());
  if (running() > 0 && continuation_ && !ending())
    return std::min(continuation_->deadline(), termination_.deadline());
  if (running() > 0) return termination_.deadline();
  return lingering() ? std::min(termination_.deadline(), in(50ms)) : no_deadline;
}

bool LocalRanks::lingering() const {
  return running() == 0 && termination_.in_grace(Clock::now()) && processes_.have_left_some();
}

void LocalRanks::act_on_deadlines() {
  act_on_aborted(Clock::now());
  if (continuation_ && !ending()) act_on_losses(Clock::now());
  if (running() > 0) act_on(termination_.due(Clock::now()));
}

void LocalRanks::act_on_losses(Clock::time_point now) {
  while (const auto rank = continuation_->take_due(now)) replace(*rank);
  const bool looks = continuation_->looks_for_stopped(now);
  for (const int rank : looks ? processes_.left() : std::vector<int>{}) {
    if (!continuation_->is_stuck(rank, is_stopped(processes_.pid(rank)), now)) continue;
    output_.say(fmt::format("{} is stopped, and another rank has ended with code 0: killed",
                            name_of_ranks({pages_.number(rank)})));
    pages_.tell_to_end(rank);
    processes_.tell(rank, SIGKILL);
  }
  if (running() > 0 || continuation_->succeeded()) return;
  const auto& first = continuation_->first_failure();
  if (continuation_->any_left())
    result_.preempt();
  else if (first && !result_.first_failure())
    result_.set_first(*first, pages_.page().since_failure());
}

void LocalRanks::act_on(Termination::Step step) {
  switch (step) {
    case Termination::Step::none:
      return;
    case Termination::Step::terminate:
      return end(SIGTERM, options_.shutdown_timeout);
    case Termination::Step::kill:
      output_.say(fmt::format("{} did not end within {:g} s after SIGTERM: killed", names_of_left(),
                              std::chrono::duration<double>(termination_.grace()).count()),
                  Level::error);
      return kill_all();
    case Termination::Step::abandon:
      output_.say(fmt::format("{} cannot be killed: left behind", names_of_left()), Level::error);
      return processes_.leave_behind();
  }
}

// A rank is reaped, and its pid reusable, only after its failure is in the job control block.
void LocalRanks::reap() {
  processes_.reap([this](int local_rank, const siginfo_t& end) { on_end(local_rank, end); });
  act_on_aborted(Clock::now());
}

void LocalRanks::on_end(int local_rank, const siginfo_t& end) {
  Failure failure = pages_.examine(local_rank, end.si_pid);
  if (failure.what.empty())
    failure.what = error_files_[static_cast<std::size_t>(local_rank)].message();
  const bool killed = end.si_code != CLD_EXITED;
  failure.signal = killed ? std::optional(end.si_status) : std::nullopt;
  failure.exit_code = killed ? std::nullopt : std::optional(end.si_status);
  if (failure.signal == SIGKILL && !failure.oom)
    failure.oom = pages_.page().oom_killed(pages_.slot(local_rank), end.si_pid);

  // A rank that reports an exception was about to exit: the signal did not end it.
  const bool has_thrown = result_.first_failure() && !failure.what.empty() &&
                          failure.signal.value_or(SIGABRT) == SIGABRT;
  const bool told = processes_.was_told(local_rank) && !has_thrown;
  const bool preempted =
      failure.exit_code == exit_preempted && (continuation_ || pages_.page().preemption_agreed());
  const bool failed = failure.exit_code != 0 && !preempted && !told;
  if (preempted && !continuation_) result_.preempt();
  if (failed) result_.fail(failure);
  if (!told) result_.complete_first(failure);
  if (ending()) return;
  if (continuation_ && preempted) continuation_->leave();
  if (continuation_ && failure.exit_code == 0) continuation_->succeed(Clock::now());
  if (failed)
    on_failure(local_rank, failure);
  else if (!preempted && pages_.is_attached(local_rank))
    // The other ranks may be done, so they get no signal. But collectives that wait for this rank,
    // now or later, must throw.
    pages_.report_end(local_rank, failure);
  else if (!preempted)
    pages_.note_end(local_rank, failure);
}

void LocalRanks::on_failure(int local_rank, const Failure& failure) {
  if (continuation_) {
    pages_.report_end(local_rank, failure);
    processes_.kill_group(local_rank);  // Such as a killed shell's program.
    return continuation_->lose(local_rank, failure, name_of_ranks({pages_.number(local_rank)}),
                               processes_.running(), Clock::now());
  }
  if (!pages_.follows_abort(local_rank)) return take_for_first(local_rank, failure);
  if (!aborted_) aborted_ = {local_rank, failure, in(JobControlBlock::time_for_cause)};
}

// If no other rank fails in time, this rank's end is the first failure.
void LocalRanks::act_on_aborted(Clock::time_point now) {
  if (!aborted_ || ending() || (running() > 0 && now < aborted_->until)) return;
  take_for_first(aborted_->local_rank, aborted_->failure);
}

void LocalRanks::take_for_first(int local_rank, const Failure& failure) {
  pages_.report_end(local_rank, failure);
  // Peers may have detected the death, and failed because of it, before it was reaped.
  std::optional<Failure> first = pages_.failure();
  if (first && !first->fault && first->rank == failure.rank && !is_shells_report(failure, *first)) {
    const int detected_by = first->detected_by;
    first = failure;
    first->detected_by = detected_by;
  }
  end_after(first.value_or(failure));
}

void LocalRanks::end_after(const Failure& failure) {
  if (ending()) return;
  if (continuation_) continuation_->stop();
  pages_.report(failure);
  result_.set_first(failure, pages_.page().since_failure());
  bool any_listens = false;
  for (const int rank : processes_.left()) {
    if (pages_.listens(rank))
      any_listens = true;
    else
      processes_.tell(rank, SIGTERM);
  }
  termination_.begin(any_listens ? time_to_throw : 0ms);
}

void LocalRanks::end(int signal, std::chrono::milliseconds patience) {
  if (continuation_) continuation_->stop();
  if (termination_.killed()) return;
  termination_.begin_grace(patience);
  for (const int rank : processes_.left()) pages_.tell_to_end(rank);
  processes_.tell_all(signal);
}

void LocalRanks::kill_all() {
  if (continuation_) continuation_->stop();
  termination_.kill();
  processes_.tell_all(SIGKILL);
}

bool LocalRanks::pass_on(int signal) {
  bool any = false;
  for (const int rank : processes_.left()) {
    const pid_t started = processes_.pid(rank);
    // A child may have joined the group, as under a shell script.
    const pid_t joined = pages_.is_attached(rank) ? pages_.pid(rank) : started;
    for (const pid_t pid : std::set{started, joined}) {
      if (!catches(pid, signal)) continue;
      ::kill(pid, signal);
      any = true;
    }
  }
  return any;
}

bool LocalRanks::expect_preemption() const {
  const std::vector<int> ranks = processes_.left();
  return !ranks.empty() && std::all_of(ranks.begin(), ranks.end(), [this](int rank) {
    return pages_.expects_preemption(rank) ||
           (pages_.is_stale(rank) && catches(processes_.pid(rank), SIGTERM));
  });
}

bool LocalRanks::is_local(int number) const {
  return local_rank(number) >= 0 && local_rank(number) < options_.nproc_per_node;
}

Failure LocalRanks::better_known(const Failure& failure) const {
  auto first = result_.first_with_alike();
  if (!first) return failure;
  const bool is_here = first->rank == failure.rank && is_local(failure.rank);
  Failure known = is_here ? *first : failure;
  add_alike(known, is_here ? failure : *first);
  return known;
}

bool LocalRanks::was_attached(const Failure& failure) const {
  return !is_local(failure.rank) || pages_.is_attached(local_rank(failure.rank));
}

std::string LocalRanks::names_of_left() const {
  std::vector<int> numbers = processes_.left();
  for (int& rank : numbers) rank = pages_.number(rank);
  return name_of_ranks(numbers);
}

std::vector<RankTimes> LocalRanks::times() const {
  std::vector<RankTimes> times;
  for (int rank = 0; rank < processes_.size(); ++rank) times.push_back(pages_.times(rank));
  return times;
}

std::vector<RankStatus> LocalRanks::status() const {
  std::vector<RankStatus> ranks;
  std::vector<pid_t> pids;
  for (int rank = 0; rank < processes_.size(); ++rank) pids.push_back(processes_.pid(rank));
  for (int rank = 0; rank < processes_.size(); ++rank) {
    RankStatus status = pages_.status(rank, pids);
    const pid_t joined = status.pid != 0 ? status.pid : processes_.pid(rank);
    status.memory = process_stat(joined).value_or(ProcessStat{}).resident_bytes;
    status.pid = processes_.pid(rank);
    if (continuation_) status.incarnation = continuation_->incarnation(rank);
    if (processes_.has_ended(rank))
      status.state = "ended";
    else if (status.state == "starting" && is_stopped(status.pid))
      status.state = "stopped";
    status.bound_to = as_ranges(binding_.ranks[static_cast<std::size_t>(rank)].cpus);
    ranks.push_back(std::move(status));
  }
  return ranks;
}

}  // namespace lockstep::launch
