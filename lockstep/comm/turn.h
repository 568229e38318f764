// A mutex with a deadline.
//
// std::timed_mutex is one too, but ThreadSanitizer of gcc 12 does not see its lock
// (pthread_mutex_clocklock).
// Thread safety: any thread may call any member at any time.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "lockstep/base/time.h"

namespace lockstep {

class Turn {
 public:
  bool try_lock() { return !taken_.exchange(true); }
  void lock() { try_lock_until(no_deadline); }  // Blocks without a limit.

  // Blocks until the mutex is free; false at the deadline.
  bool try_lock_until(Deadline deadline) {
    if (try_lock()) return true;
    std::unique_lock lock(mutex_);
    waiting_.fetch_add(1);
    const bool came = freed_.wait_until(lock, deadline, [this] { return try_lock(); });
    waiting_.fetch_sub(1);
    return came;
  }

  void unlock() {
    taken_.store(false);
    if (waiting_.load() == 0)
      return;  // Must come after the store; otherwise a waiter could be
               // missed.
    const std::lock_guard lock(mutex_);
    freed_.notify_one();
  }

 private:
  std::atomic<bool> taken_{false};
  std::atomic<int> waiting_{0};
  std::mutex mutex_;
  std::condition_variable freed_;
};

}  // namespace lockstep
