// An asynchronous operation of a group.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/comm/core/buffer.h"

namespace lockstep {

namespace comm {
class CallQueue;
class PointToPoint;
class Runner;
}  // namespace comm

// Thread safety: any thread.
// Errors: misuse in a fork()ed child, where no operation of the parent runs.
// Lifetime: copies share the operation. Destruction neither waits nor cancels; buffers must stay
// valid until the operation is complete.
class LOCKSTEP_API Work {
 public:
  // Has no operation: all members throw misuse.
  Work() = default;

  // Blocks until the operation is complete. Without a timeout, this thread runs the operation, and
  // those before it, if not started. Errors: the operation's; timeout, after which the operation
  // continues.
  void wait(std::chrono::milliseconds timeout = std::chrono::milliseconds::max()) const;
  template <int = 0>  // A template, so that wait({}) is not ambiguous.
  [[deprecated("pass a timeout")]] void wait(std::chrono::steady_clock::time_point deadline) const {
    wait(std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()));
  }

  // True after success or failure. Does not start the operation.
  bool is_completed() const;
  [[deprecated("use is_completed()")]] bool completed() const { return is_completed(); }

  // Calls `act` once when the operation ends: on the completing thread, or here if it has ended.
  // Starts the operation on a background thread. `act` must not throw. It may start operations and
  // wait for them, but not for another thread that waits for messages of the group. Acts registered
  // before the end keep their order.
  void on_completion(std::function<void()> act) const;

  // The operation's exception; null before it ends and after success.
  std::exception_ptr error() const;

  // The origin of a successful receive; otherwise any_source and any_tag.
  Source source() const;

 private:
  friend class comm::CallQueue;
  friend class comm::PointToPoint;
  friend class comm::Runner;
  struct State;
  explicit Work(std::shared_ptr<State> state);
  State& state() const;

  std::shared_ptr<State> state_;
};

}  // namespace lockstep
