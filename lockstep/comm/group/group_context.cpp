// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group/group_context.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::comm {
namespace {

GroupIdentity with_backend(GroupIdentity identity, const Backend& backend) {
  identity.backend = backend.name();
  identity.local = backend.local();
  return identity;
}

// Whether another rank had detected who left, and reported it (Pipes::why_left()).
bool was_noticed_by_another(const Error& error) {
  const auto& failure = error.failure();
  return failure && failure->left && !failure->ranks.empty();
}

// Every rank detects a death or an abort itself. Only the reason for an orderly exit has to be
// forwarded.
bool is_for_group(const Error& error) {
  if (error.fault() == Fault::peer_lost) return !error.failure() || was_noticed_by_another(error);
  return error.fault() != Fault::aborted;
}

// Converts group ranks to job ranks. Another process may have supplied them.
Failure in_the_job(Failure failure, const GroupIdentity& group) {
  failure.detected_by = group.world_rank(failure.detected_by);
  failure.ranks = ranks_within(std::move(failure.ranks), group.size);
  for (int& rank : failure.ranks) rank = group.world_rank(rank);
  failure.rank = failure.ranks.empty() ? -1 : failure.ranks.front();
  return failure;
}

}  // namespace

FailureReports reports_of(const std::exception_ptr& error, const GroupIdentity& group,
                          const std::string& context, std::chrono::milliseconds timeout) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    FailureReports reports{.text = known.what()};
    if (was_noticed_by_another(known))
      reports.failure = known.failure();
    else if (blames_ranks(known))
      reports.failure = in_the_job(blame_in(known, group.rank, context, timeout), group);
    if (is_for_group(known)) reports.to_group = abort_reason_for(known, group.rank, context);
    return reports;
  } catch (const std::exception& other) {
    return {.text = other.what(),
            .to_group = AbortReason{.rank = group.rank, .reason = other.what()}};
  }
}

GroupContext::GroupContext(GroupIdentity identity, Resources resources)
    : identity_(with_backend(std::move(identity), *resources.backend)),
      resources_(std::move(resources)) {}

void GroupContext::throw_over() const {
  throw Error(Fault::misuse, fmt::format("group {} was destroyed", identity_.name));
}

GroupContext::Resources GroupContext::remaining() const {
  const std::lock_guard lock(mutex_);
  return resources_;
}

GroupContext::Resources GroupContext::resources() const {
  const std::lock_guard lock(mutex_);
  require_usable();
  return resources_;
}

// Released outside the lock, because a backend may wait for its engine.
void GroupContext::end() {
  Resources released;
  const std::lock_guard lock(mutex_);
  std::swap(released, resources_);
}

void GroupContext::throw_first() const {
  RankContext::note_failed_call();
  const std::lock_guard lock(mutex_);
  std::rethrow_exception(first_);
}

void GroupContext::report(const std::exception_ptr& error, const std::string& context) const {
  const FailureReports reports = reports_of(error, identity_, context, {});
  const Resources held = remaining();
  if (reports.failure && held.rank_context) held.rank_context->report_break(*reports.failure);
}

void GroupContext::break_with(const std::exception_ptr& error, const std::string& context,
                              std::chrono::milliseconds timeout) {
  RankContext::note_failed_call();
  {
    const std::lock_guard lock(mutex_);
    if (first_) return;
    first_ = error;
    is_broken_.store(true, std::memory_order_release);
  }
  const FailureReports reports = reports_of(error, identity_, context, timeout);
  const Resources held = remaining();
  if (reports.failure && held.rank_context) held.rank_context->report_break(*reports.failure);
  if (reports.to_group && held.backend) held.backend->abort(*reports.to_group);
  save_flight_record(identity_.record_header(reports.text), flight_record(reports.text));
}

std::string GroupContext::flight_record(const std::string& error) const {
  return comm::flight_record(identity_.record_header(error), collectives_, messages_);
}

}  // namespace lockstep::comm
