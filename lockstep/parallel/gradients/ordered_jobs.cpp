// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/ordered_jobs.h"

#include <utility>

#include "lockstep/base/signals.h"
#include "lockstep/job/step_clock.h"

namespace lockstep::parallel {

OrderedJobs::~OrderedJobs() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::uint64_t OrderedJobs::start(std::function<void()> job) {
  if (!thread_.joinable()) thread_ = start_thread([this] { work(); });
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(job));
  }
  changed_.notify_all();
  return ++started_;
}

void OrderedJobs::wait(std::uint64_t number) {
  const StepClock::Lent lent;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= number || error_; });
  if (error_) std::rethrow_exception(error_);
}

void OrderedJobs::let_finish() noexcept {
  const StepClock::Lent lent;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty(); });
}

std::exception_ptr OrderedJobs::take_error() noexcept {
  let_finish();
  const std::lock_guard lock(mutex_);
  return std::exchange(error_, nullptr);
}

bool OrderedJobs::busy() const {
  const std::lock_guard lock(mutex_);
  return !queue_.empty();
}

void OrderedJobs::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    const auto job = std::move(queue_.front());
    const bool go_on = !error_;
    lock.unlock();
    std::exception_ptr error;
    try {
      if (go_on) job();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) error_ = error;
    queue_.pop_front();
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace lockstep::parallel
