// Runs a group's collectives in call order, on the first available thread.
//
// A thread that waits for a call without a deadline runs it, after all earlier ones. This object's
// threads run the others `patience` after add(), or at once if a thread gets a future or waits with
// a deadline. add() never runs calls: ranks that use two groups in opposite orders would deadlock.
//
// Thread safety: full, also in callbacks of futures.
// Errors: misuse in a forked child, which lacks these threads.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/base/thread.h"
#include "lockstep/base/time.h"

namespace lockstep::torch_backend {

class CollectiveWork;

class OrderedCalls : public std::enable_shared_from_this<OrderedCalls> {
 public:
  static constexpr std::chrono::microseconds patience{200};

  OrderedCalls();
  OrderedCalls(const OrderedCalls&) = delete;
  OrderedCalls& operator=(const OrderedCalls&) = delete;

  // Errors: aborted after end().
  void add(c10::intrusive_ptr<CollectiveWork> call);

  // Returns when every added call is complete; runs unstarted ones.
  void catch_up();

  // Returns when `call` is complete; false at the deadline.
  bool await(const CollectiveWork& call, Deadline deadline);

  bool is_idle() const { return pending_.load(std::memory_order_acquire) == 0; }

  // Makes a thread of this object run the waiting calls at once.
  void hurry();

  // Fails unstarted calls with Error(aborted). Returns when this object's threads, except the
  // calling one, have ended; each of them keeps the object alive. Does nothing in a forked child.
  void end();

 private:
  using Lock = std::unique_lock<std::mutex>;

  struct Added {
    c10::intrusive_ptr<CollectiveWork> call;
    Clock::time_point at;
  };

  void require_own_process() const;
  void loop();
  void run_front(Lock& lock, bool is_own_thread);
  void fail_rest(Lock& lock);
  void require_free_thread();

  const pid_t pid_;
  std::atomic<std::size_t> pending_{0};  // Incomplete calls.

  std::mutex mutex_;  // Guards what follows. Not held while user code or destructors run.
  std::condition_variable completed_;
  std::condition_variable work_;
  std::deque<Added> added_;  // Calls that have not started.
  bool running_ = false;
  bool hurried_ = false;  // Set by hurry() until the queue is empty.
  bool ending_ = false;
  std::size_t asleep_ = 0;       // Threads that wait without a timeout,
  std::size_t completing_ = 0;   // and those that run callbacks.
  std::vector<Thread> threads_;  // One, and another for each that runs callbacks.
};

}  // namespace lockstep::torch_backend
