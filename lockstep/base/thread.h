// A thread with a stack of at least 8 MiB, even if `ulimit -s` is smaller.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "lockstep/base/api.h"
#include "lockstep/base/signals.h"

namespace lockstep {

// Requests short slices of CPU time for this thread and the threads it starts, from Linux 6.12 on
// and for the policy SCHED_OTHER only.
//
// A thread with shorter slices preempts computing threads, and gets the same total CPU time. On a
// rank with no spare CPU, each message otherwise waits about 4 ms for the other thread's slice to
// end. https://docs.kernel.org/scheduler/sched-eevdf.html
LOCKSTEP_API void ask_for_short_slices();

// As std::thread: the process ends if `body` throws, or if the thread is destroyed or assigned to
// before join() or detach().
class LOCKSTEP_API Thread {
 public:
  Thread() = default;

  // Errors: system if no thread can start, as at the user's limit.
  template <class Body>
  explicit Thread(Body body) {
    auto owned = std::make_unique<Body>(std::move(body));
    start(&run<Body>, owned.get());
    owned.release();  // NOLINT(bugprone-unused-return-value): the thread owns it now.
  }

  Thread(Thread&& other) noexcept : id_(std::exchange(other.id_, std::nullopt)) {}
  Thread& operator=(Thread&& other) noexcept;
  ~Thread();

  bool joinable() const { return id_.has_value(); }
  bool is_current() const { return joinable() && ::pthread_equal(*id_, ::pthread_self()) != 0; }
  void join();
  void detach();

  // For a fork()ed child, which lacks the thread.
  void forget() { id_.reset(); }

 private:
  template <class Body>
  static void* run(void* body) noexcept {
    const std::unique_ptr<Body> owned(static_cast<Body*>(body));
    (*owned)();
    return nullptr;
  }

  void start(void* (*routine)(void*), void* body);

  std::optional<pthread_t> id_;
};

// Starts a thread with short CPU slices. The thread blocks all signals so that the user's threads
// receive them. Errors: as Thread's.
template <class Function, class... Arguments>
Thread start_thread(Function function, Arguments... arguments) {
  const BlockSignals block;
  return Thread([function = std::move(function), ... arguments = std::move(arguments)]() mutable {
    ask_for_short_slices();
    std::invoke(function, std::move(arguments)...);
  });
}

}  // namespace lockstep
