// An asynchronous operation of a group.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/core/buffer.h"

namespace lockstep {

namespace comm {
class PointToPoint;
class ProgressThread;
}  // namespace comm

// Thread safety: any thread may call any member at any time.
// Errors: misuse in a fork()ed child, where no operation of the parent runs.
// Lifetime: a copyable handle. Destroying it neither waits nor cancels; the operation's buffers
// must stay valid until it is complete.
class LOCKSTEP_API Work {
 public:
  // Has no operation: all members except copies and this one throw misuse.
  Work() = default;

  // Blocks until the operation is complete. Errors: the operation's own; timeout when `deadline`
  // passes first, and then the operation continues.
  void wait(Deadline deadline = no_deadline) const;

  // True once it is complete or has failed.
  bool completed() const;

  // Returns the operation's exception; null before its end and after success.
  std::exception_ptr error() const;

  // Returns the origin of a completed receive; otherwise any_source and any_tag.
  Source source() const;

 private:
  friend class comm::ProgressThread;
  friend class comm::PointToPoint;
  struct State;
  explicit Work(std::shared_ptr<State> state);
  State& state() const;

  std::shared_ptr<State> state_;
};

}  // namespace lockstep
