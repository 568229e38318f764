// Runs the collectives of one group in the order in which they were made, on whichever thread comes
// first.
//
// A thread that waits for a call runs all that comes before it, and the call itself, unless another
// thread has begun: a call that is made and waited for wakes no other thread. What nobody waits for
// is run by threads of this object. They take over `patience` after the call was made, or at once
// when somebody waits for its future, which cannot run anything.
//
// Calls are never run inside the function that makes them: two groups that are used in opposite
// orders on two ranks would block each other.
//
// Thread safety: any thread may call any member at any time, also from the callback of a future.
// Errors: misuse in a fork()ed child, where none of these threads is.

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

namespace lockstep::c10d {

class CollectiveWork;

class OrderedCalls : public std::enable_shared_from_this<OrderedCalls> {
 public:
  static constexpr std::chrono::microseconds patience{200};

  OrderedCalls();
  OrderedCalls(const OrderedCalls&) = delete;
  OrderedCalls& operator=(const OrderedCalls&) = delete;

  // Adds a call. Errors: aborted after end().
  void add(c10::intrusive_ptr<CollectiveWork> call);

  // Returns when every call that was added is complete. Runs those that nobody has begun.
  void catch_up();

  // Returns when `call`, which was added, is complete; false at the deadline. With a deadline it
  // runs nothing itself, because it could not return before what it runs.
  bool await(const CollectiveWork& call, Deadline deadline);

  bool is_idle() const { return pending_.load(std::memory_order_acquire) == 0; }

  // A thread takes over at once.
  void hurry();

  // Fails the calls that nobody has begun with Error(aborted), and returns when no thread of this
  // object runs any more, except the calling one. Without it, they keep this object alive. In a
  // fork()ed child, where they do not exist, it does nothing.
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
  std::atomic<std::size_t> pending_{0};  // Calls added and not complete, readable without the lock.

  std::mutex mutex_;  // Guards the members below. Never held while user code runs, or destructors.
  std::condition_variable completed_;
  std::condition_variable work_;
  std::deque<Added> added_;  // Calls that nobody has begun.
  bool running_ = false;     // A thread runs a call.
  bool hurried_ = false;     // Until nothing is left.
  bool ending_ = false;
  std::size_t asleep_ = 0;       // Threads of this object that wait without a time limit,
  std::size_t telling_ = 0;      // and those that run callbacks.
  std::vector<Thread> threads_;  // One, and one more for each callback that waits for a call.
};

}  // namespace lockstep::c10d
