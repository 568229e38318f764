// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/attempt_result.h"

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

int code_of(const Failure& failure) {
  return failure.signal ? 128 + *failure.signal : failure.exit_code.value_or(0);
}

// True when no more will become known of the failure.
bool is_complete(const Failure& failure) {
  return failure.signal || failure.exit_code || failure.fault;
}

}  // namespace

void AttemptResult::fail(const Failure& end) {
  failed_.insert(end.rank);
  if (!first_) code_of_first_end_ = code_of(end);
}

void AttemptResult::set_first(const Failure& failure, std::chrono::milliseconds noticed_after) {
  check(!first_, "an attempt has one first failure");
  first_ = failure;
  noticed_after_ = noticed_after;
}

void AttemptResult::complete_first(const Failure& end) {
  if (!first_ || first_->rank != end.rank || is_complete(*first_)) return;
  const int detected_by = first_->detected_by;
  first_ = end;
  first_->detected_by = detected_by;
}

int AttemptResult::exit_code() const {
  if (start_error_ != 0) return start_error_;
  if (!first_) return 0;
  // A rank that left too early with code 0 is a failure, too.
  const int code = code_of(*first_);
  return code != 0 ? code : code_of_first_end_;
}

std::vector<int> AttemptResult::also_failed() const {
  std::vector<int> ranks;
  for (const int rank : failed_)
    if (!first_ || rank != first_->rank) ranks.push_back(rank);
  return ranks;
}

Outcome AttemptResult::outcome() const {
  if (start_error_ != 0) return Outcome::stopped;  // A restart would not help.
  if (first_) return exit_code() == exit_preempted ? Outcome::preempted : Outcome::failed;
  return preempted_ ? Outcome::preempted : Outcome::succeeded;
}

}  // namespace lockstep
