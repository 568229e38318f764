// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/rank_reports.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/processes.h"
#include "lockstep/launch/failure_report.h"

namespace lockstep::launch {
namespace {

int code_of(const Failure& failure) {
  return failure.signal ? 128 + *failure.signal : failure.exit_code.value_or(0);
}

// No more details of the failure can follow.
bool is_complete(const Failure& failure) {
  return failure.signal || failure.exit_code || failure.fault;
}

}  // namespace

RankPages::RankPages(int local_ranks, const Round& round)
    : first_rank_(round.first_rank),
      world_size_(round.world_size),
      own_(JobControlBlock::create(local_ranks, round.job_id, round.world_size)) {}

void RankPages::use_session_page(FileDescriptor fd) {
  JobControlBlock page = JobControlBlock::attach(std::move(fd));
  if (page.slots() == world_size_) session_.emplace(std::move(page));
}

void RankPages::renew(int local_rank) {
  earlier_pids_[local_rank] = pid(local_rank);
  own_.await_group(local_rank, false);
}

bool RankPages::is_stale(int local_rank) const {
  const auto found = earlier_pids_.find(local_rank);
  return found != earlier_pids_.end() && found->second == pid(local_rank);
}

JobControlBlock::Phase RankPages::phase(int local_rank) const {
  return is_stale(local_rank) ? JobControlBlock::Phase::vacant : page().phase(slot(local_rank));
}

bool RankPages::is_attached(int local_rank) const {
  const JobControlBlock::Phase now = phase(local_rank);
  return now == JobControlBlock::Phase::alive || now == JobControlBlock::Phase::abandoned;
}

bool RankPages::listens(int local_rank) const {
  return is_attached(local_rank) || own_.awaits_group(local_rank);
}

bool RankPages::expects_preemption(int local_rank) const {
  return !is_stale(local_rank) && page().expects_preemption(slot(local_rank));
}

bool RankPages::follows_abort(int local_rank) const {
  return page().follows_abort(slot(local_rank));
}

Failure RankPages::examine(int local_rank, pid_t pid) const {
  Failure failure;
  if (is_stale(local_rank))
    failure.host = host_name();
  else
    failure = page().examine(slot(local_rank));
  failure.rank = number(local_rank);
  failure.pid = pid;
  return failure;
}

// Ranks that wait for a group check the agent's own block.
void RankPages::report(const Failure& failure) const {
  page().report(failure);
  if (session_) own_.report(session_->failure().value_or(failure));
}

void RankPages::report_end(int local_rank, const Failure& end) const {
  const Failure cause = page().cause_of(slot(local_rank), end);
  const bool may_have_waited =
      phase(local_rank) == JobControlBlock::Phase::finished;  // For the next group.
  report(may_have_waited ? own_.cause_of(local_rank, cause) : cause);
}

RankTimes RankPages::times(int local_rank) const {
  const StepReport& report = page().step_report(slot(local_rank));
  return {.rank = number(local_rank),
          .times = report.whole.shown(),
          .stood_still = std::chrono::nanoseconds(report.stood_still)};
}

RankStatus RankPages::status(int local_rank, const std::vector<pid_t>& pids) const {
  if (phase(local_rank) != JobControlBlock::Phase::alive)
    if (auto later = later_groups_.status(local_rank, pids, first_rank_)) return *std::move(later);
  if (is_stale(local_rank))
    return {.rank = number(local_rank), .state = "starting", .last = "yet to join its group"};
  return status_of(page(), slot(local_rank), session_ ? 0 : first_rank_);
}

void AttemptResult::fail(const Failure& end) {
  failed_.insert_or_assign(end.rank, end);
  if (!first_) code_of_first_end_ = code_of(end);
}

void AttemptResult::set_first(const Failure& failure, std::chrono::milliseconds noticed_after) {
  check(!first_, "an attempt has one first failure");
  first_ = failure;
  noticed_after_ = noticed_after;
}

void AttemptResult::complete_first(const Failure& end) {
  if (!first_ || first_->rank != end.rank || is_complete(*first_)) return;
  if (first_->left && end.exit_code == 0) return;  // It left first: others failed.
  const int detected_by = first_->detected_by;
  first_ = end;
  first_->detected_by = detected_by;
}

int AttemptResult::exit_code() const {
  if (start_error_ != 0) return start_error_;
  if (!first_) return 0;
  // Leaving too early with code 0 is a failure, too.
  const int code = code_of(*first_);
  return code != 0 ? code : code_of_first_end_;
}

std::optional<Failure> AttemptResult::first_with_alike() const {
  std::optional<Failure> first = first_;
  if (!first) return first;
  for (const auto& [rank, end] : failed_)
    if (rank != first->rank) add_alike(*first, end);
  return first;
}

std::vector<int> AttemptResult::also_failed() const {
  std::vector<int> ranks;
  for (const auto& [rank, end] : failed_)
    if (!first_ || (rank != first_->rank && !ended_alike(*first_, end))) ranks.push_back(rank);
  return ranks;
}

Outcome AttemptResult::outcome() const {
  if (start_error_ != 0) return Outcome::stopped;  // A restart would fail again.
  if (first_) return exit_code() == exit_preempted ? Outcome::preempted : Outcome::failed;
  return preempted_ ? Outcome::preempted : Outcome::succeeded;
}

}  // namespace lockstep::launch
