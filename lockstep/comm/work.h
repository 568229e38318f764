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
  // Has no operation: all members except copies and this one throw misuse.
  Work() = default;

  // Blocks until the operation is complete. Without a deadline it runs the operation, and those
  // before it, on this thread, as far as they have not begun: it then costs little more than the
  // blocking call. Errors: the operation's own; timeout when `deadline` passes first, and then the
  // operation continues.
  void wait(Deadline deadline = no_deadline) const;

  // True once it is complete or has failed. Otherwise a background thread takes it over.
  bool completed() const;

  // Calls `act` once when the operation is complete or has failed: on the thread that completes it,
  // or now, on this one, if it is. A background thread takes over what has not begun. `act` may
  // start operations and wait for them, but for no other thread that waits for messages of the
  // group; it must not throw. Acts that were given before the end are called in their order.
  void on_completion(std::function<void()> act) const;

  // Returns the operation's exception; null before its end and after success.
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
