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
#include "lockstep/launch/process.h"
#include "lockstep/launch/rank_starter.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;

// For a rank in a group to throw an Error about the failed rank, and to exit, before a signal.
constexpr std::chrono::milliseconds time_to_throw = 500ms;

// Whether `end` is a shell's exit code for the signal that peers have `seen`: their record has more
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
  if (starter.error() == 0) return;
  result_.fail_to_start(starter.error());
  kill_all();
}

void LocalRanks::serve(const std::vector<pollfd>& entries) {
  broker_.serve(entries);
  try {
    if (FileDescriptor fd = broker_.take(session_page_key)) pages_.use_session_page(std::move(fd));
  } catch (const Error& error) {  // A rank's message must not end its agent.
    output_.say(fmt::format("a rank's job control block is not used: {}", error.what()));
  }
}

Deadline LocalRanks::deadline() const {
  if (aborted_ && !ending()) return std::min(aborted_->until, termination_.deadline());
  if (running() > 0) return termination_.deadline();
  return lingering() ? std::min(termination_.deadline(), in(50ms)) : no_deadline;
}

bool LocalRanks::lingering() const {
  return running() == 0 && termination_.in_grace(Clock::now()) && processes_.have_left_some();
}

void LocalRanks::act_on_deadlines() {
  act_on_aborted(Clock::now());
  if (running() > 0) act_on(termination_.due(Clock::now()));
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
  const JobControlBlock& page = pages_.page();
  if (failure.signal == SIGKILL && !failure.oom) failure.oom = page.oom_killed();

  const bool told = processes_.was_told(local_rank);
  const bool preempted = failure.exit_code == exit_preempted && page.preemption_agreed();
  const bool failed = failure.exit_code != 0 && !preempted && !told;
  if (preempted) result_.preempt();
  if (failed) result_.fail(failure);
  if (!told) result_.complete_first(failure);
  if (ending()) return;
  if (failed)
    on_failure(local_rank, failure);
  else if (!preempted && pages_.is_attached(local_rank))
    // The other ranks may be done as well, so they get no signal. But a collective that waits for
    // this rank, now or later, must throw.
    pages_.report_end(local_rank, failure);
  else if (!preempted)
    pages_.note_end(local_rank, failure);
}

void LocalRanks::on_failure(int local_rank, const Failure& failure) {
  if (!pages_.follows_abort(local_rank)) return take_for_first(local_rank, failure);
  if (!aborted_) aborted_ = {local_rank, failure, in(JobControlBlock::time_for_cause)};
}

// If no other rank fails in time, the rank's own end is the first failure.
void LocalRanks::act_on_aborted(Clock::time_point now) {
  if (!aborted_ || ending() || (running() > 0 && now < aborted_->until)) return;
  take_for_first(aborted_->local_rank, aborted_->failure);
}

void LocalRanks::take_for_first(int local_rank, const Failure& failure) {
  pages_.report_end(local_rank, failure);
  // Peers may have detected the rank's death, and failed because of it, before it was reaped.
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
  if (termination_.killed()) return;
  termination_.begin_grace(patience);
  for (const int rank : processes_.left()) pages_.tell_to_end(rank);
  processes_.tell_all(signal);
}

void LocalRanks::kill_all() {
  termination_.kill();
  processes_.tell_all(SIGKILL);
}

bool LocalRanks::pass_on(int signal) {
  bool any = false;
  for (const int rank : processes_.left()) {
    const pid_t started = processes_.pid(rank);
    // The process that joined the group may be a child, for example of a shell script.
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
    return pages_.expects_preemption(rank);
  });
}

bool LocalRanks::is_local(int number) const {
  return local_rank(number) >= 0 && local_rank(number) < options_.nproc_per_node;
}

Failure LocalRanks::better_known(const Failure& failure) const {
  const auto& first = result_.first_failure();
  const bool is_first = first && first->rank == failure.rank;
  return is_first && is_local(failure.rank) ? *first : failure;
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
  for (int rank = 0; rank < processes_.size(); ++rank) {
    RankStatus status = pages_.status(rank);
    const pid_t joined = status.pid != 0 ? status.pid : processes_.pid(rank);
    status.memory = process_stat(joined).value_or(ProcessStat{}).resident_bytes;
    status.pid = processes_.pid(rank);
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
