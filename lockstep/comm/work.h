// An asynchronous operation of a group.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/core/buffer.h"

namespace lockstep {

namespace comm {
class CallQueue;
class PointToPoint;
class Runner;
}  // namespace comm

// Thread safety: any thread may call any member at any time.
// Errors: misuse in a fork()ed child, where no operation of the parent runs.
// Lifetime: a copyable handle. Destroying it neither waits nor cancels; the operation's buffers
// must stay valid until it is complete.
class LOCKSTEP_API Work {
 public:
  // Has no operation: only copying and destruction do not throw misuse.
  Work() = default;

  // Blocks until the operation is complete. Without a deadline, this thread runs the operation and
  // those before it that have not started, so it costs little more than the blocking call. Errors:
  // the operation's; timeout when `deadline` passes first, after which the operation continues.
  void wait(Deadline deadline = no_deadline) const;

  // True when it is complete or has failed. Otherwise a background thread starts to run it.
  bool completed() const;

  // Calls `act` once when the operation is complete or has failed: on the completing thread, or
  // immediately on this thread if it has already ended. A background thread runs what has not
  // started. `act` must not throw. It may start operations and wait for them, but not for another
  // thread that waits for messages of the group. Acts registered before the end are called in
  // order.
  void on_completion(std::function<void()> act) const;

  // Returns the operation's exception; null before it ends and after success.
  std::exception_ptr error() const;

  // Returns the origin of a completed receive; otherwise any_source and any_tag.
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
