// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group/group_failure.h"

#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/comm/group/met_break.h"

namespace lockstep::comm {
namespace {

// Whether another rank had detected who left, and reported it (Pipes::why_left()).
bool was_noticed_by_another(const Error& error) {
  const auto& failure = error.failure();
  return failure && failure->left && !failure->ranks.empty();
}

bool must_be_told(const Error& error) {
  // Every rank detects a death or an abort itself. Only the reason for an orderly exit has to be
  // forwarded.
  if (error.fault() == Fault::peer_lost) return !error.failure() || was_noticed_by_another(error);
  return error.fault() != Fault::aborted;
}

}  // namespace

GroupFailure::GroupFailure(const GroupIdentity& group, Reactions reactions)
    : group_(group), reactions_(std::move(reactions)) {}

void GroupFailure::throw_first() const {
  has_met_break = true;
  const std::lock_guard lock(mutex_);
  std::rethrow_exception(first_);
}

// Converts group ranks to job ranks. Another process may have supplied them.
Failure GroupFailure::in_the_job(Failure failure) const {
  failure.detected_by = group_.world_rank(failure.detected_by);
  failure.ranks = ranks_within(std::move(failure.ranks), group_.size);
  for (int& rank : failure.ranks) rank = group_.world_rank(rank);
  failure.rank = failure.ranks.empty() ? -1 : failure.ranks.front();
  return failure;
}

void GroupFailure::report_break(const Error& error, const std::string& context,
                                std::chrono::milliseconds timeout) const {
  if (was_noticed_by_another(error))
    reactions_.report_break(*error.failure());
  else if (blames_ranks(error))
    reactions_.report_break(in_the_job(blame_in(error, group_.rank, context, timeout)));
}

void GroupFailure::note(const std::exception_ptr& error, const std::string& context) const {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    report_break(known, context, {});
  } catch (...) {  // No rank caused it.
  }
}

void GroupFailure::break_with(std::exception_ptr error, const std::string& context,
                              std::chrono::milliseconds timeout) {
  {
    const std::lock_guard lock(mutex_);
    has_met_break = true;
    if (first_) return;
    first_ = error;
    is_broken_.store(true, std::memory_order_release);
  }
  std::string what = "unknown";
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    what = known.what();
    report_break(known, context, timeout);
    if (must_be_told(known)) reactions_.abort(abort_reason_for(known, group_.rank, context));
  } catch (const std::exception& other) {
    what = other.what();
    reactions_.abort({.rank = group_.rank, .reason = what});
  }
  reactions_.save_record(what);
}

}  // namespace lockstep::comm
