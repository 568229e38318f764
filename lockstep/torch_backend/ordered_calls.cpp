// SPDX-License-Identifier: Apache-2.0
#include "lockstep/torch_backend/ordered_calls.h"

#include <exception>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/processes.h"
#include "lockstep/torch_backend/gil.h"
#include "lockstep/torch_backend/work.h"

namespace lockstep::torch_backend {

OrderedCalls::OrderedCalls() : pid_(this_process()) {}

void OrderedCalls::require_own_process() const {
  require(pid_ == this_process(),
          "this process was fork()ed from one that is in the group: it has no part in it");
}

void OrderedCalls::add(c10::intrusive_ptr<CollectiveWork> call) {
  require_own_process();
  const Lock lock(mutex_);
  if (ending_) throw Error(Fault::aborted, "this process has left the group");
  require_free_thread();
  added_.push_back({std::move(call), Clock::now()});
  pending_.fetch_add(1, std::memory_order_relaxed);
  if (asleep_ > 0 || hurried_) work_.notify_one();
}

// Requires the lock. A callback may wait for a later call: its thread is not free.
void OrderedCalls::require_free_thread() {
  if (threads_.size() > completing_) return;
  threads_.push_back(start_thread([self = shared_from_this()] { self->loop(); }));
}

void OrderedCalls::catch_up() {
  if (pending_.load(std::memory_order_acquire) == 0) return;
  require_own_process();
  Lock lock(mutex_);
  while (pending_.load(std::memory_order_relaxed) != 0) {
    if (!running_ && !added_.empty())
      run_front(lock, false);
    else
      completed_.wait(lock);
  }
}

bool OrderedCalls::await(const CollectiveWork& call, Deadline deadline) {
  if (call.is_over()) return true;
  require_own_process();
  if (deadline != no_deadline) hurry();
  Lock lock(mutex_);
  while (!call.is_over()) {
    if (deadline == no_deadline && !running_ && !added_.empty())
      run_front(lock, false);
    else if (completed_.wait_until(lock, deadline) == std::cv_status::timeout)
      return call.is_over();
  }
  return true;
}

void OrderedCalls::hurry() {
  const Lock lock(mutex_);
  if (added_.empty()) return;
  hurried_ = true;
  work_.notify_one();
}

// Other calls may run before this call's callbacks. Drops the last reference unlocked: destructors
// may take the GIL, whose holder may wait for the lock.
void OrderedCalls::run_front(Lock& lock, bool is_own_thread) {
  auto call = std::move(added_.front().call);
  added_.pop_front();
  running_ = true;
  lock.unlock();
  call->perform();
  lock.lock();
  running_ = false;
  pending_.fetch_sub(1, std::memory_order_release);
  hurried_ = hurried_ && !added_.empty();
  completed_.notify_all();
  if (!added_.empty()) work_.notify_one();
  const bool completes = call->has_future();
  if (completes && is_own_thread) ++completing_;
  if (completes && !added_.empty()) require_free_thread();
  lock.unlock();
  if (completes) call->complete_future();
  call.reset();
  lock.lock();
  if (completes && is_own_thread) --completing_;
}

void OrderedCalls::loop() {
  keep_thread_state();
  Lock lock(mutex_);
  while (!ending_) {
    const Clock::time_point begin =
        added_.empty() || hurried_ ? Clock::time_point::min() : added_.front().at + patience;
    if (running_ || added_.empty()) {
      ++asleep_;
      work_.wait(lock);
      --asleep_;
    } else if (begin > Clock::now()) {
      work_.wait_until(lock, begin);
    } else {
      run_front(lock, true);
    }
  }
}

void OrderedCalls::fail_rest(Lock& lock) {
  const auto error = std::make_exception_ptr(
      Error(Fault::aborted, "this process has left the group before the call was begun"));
  while (!added_.empty()) {
    auto call = std::move(added_.front().call);
    added_.pop_front();
    pending_.fetch_sub(1, std::memory_order_release);
    lock.unlock();
    call->fail(error);
    call.reset();
    lock.lock();
    completed_.notify_all();
  }
}

void OrderedCalls::end() {
  if (pid_ != this_process()) return;
  Lock lock(mutex_);
  ending_ = true;
  fail_rest(lock);
  work_.notify_all();
  auto threads = std::exchange(threads_, {});
  lock.unlock();
  for (Thread& thread : threads) thread.is_current() ? thread.detach() : thread.join();
}

}  // namespace lockstep::torch_backend
