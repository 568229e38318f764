// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group/group_life.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/base/time.h"

namespace lockstep::comm {

GroupLife::GroupLife(const GroupIdentity& group, std::shared_ptr<Backend> backend,
                     std::shared_ptr<RankInJob> in_job)
    : group_(group), in_job_(std::move(in_job)), backend_(std::move(backend)) {}

void GroupLife::throw_over() const {
  throw Error(Fault::misuse, fmt::format("group {} was destroyed", group_.name));
}

std::shared_ptr<RankInJob> GroupLife::in_job() const {
  const std::lock_guard lock(mutex_);
  require_usable();
  return in_job_;
}

std::shared_ptr<Backend> GroupLife::shared_backend() const {
  const std::lock_guard lock(mutex_);
  require_usable();
  return backend_;
}

void GroupLife::leave() const {
  std::unique_lock lock(mutex_);
  const auto backend = backend_;
  lock.unlock();
  if (backend) backend->leave();
}

void GroupLife::abort(const AbortReason& why) const {
  std::unique_lock lock(mutex_);
  const auto backend = backend_;
  lock.unlock();
  if (backend) backend->abort(why);
}

void GroupLife::report_break(Failure failure) const {
  std::unique_lock lock(mutex_);
  const auto in_job = in_job_;
  lock.unlock();
  if (in_job) in_job->report_break(std::move(failure));
}

void GroupLife::note_abort() const {
  std::unique_lock lock(mutex_);
  const auto in_job = in_job_;
  lock.unlock();
  if (in_job) in_job->activity().aborted_at.store(ticks_now());
}

RegisteredMemory GroupLife::allocate_local(std::size_t bytes) const {
  std::unique_lock lock(mutex_);
  require_usable();
  const auto in_job = in_job_;
  const auto backend = backend_;  // Released first.
  lock.unlock();
  return backend->allocate_local(bytes);
}

bool GroupLife::knows_of_loss() const {
  std::unique_lock lock(mutex_);
  const auto in_job = in_job_;
  lock.unlock();
  return in_job && in_job->knows_of_loss();
}

// Released outside the lock, because a backend may wait for its engine.
void GroupLife::end() {
  std::shared_ptr<RankInJob> in_job;
  std::shared_ptr<Backend> backend;  // Released first: it may use objects of `in_job`.
  const std::lock_guard lock(mutex_);
  backend.swap(backend_);
  in_job.swap(in_job_);
}

}  // namespace lockstep::comm
