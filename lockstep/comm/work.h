// An asynchronous operation of a group that may still be under way.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/core/message.h"

namespace lockstep {

// A copyable handle. Dropping it neither waits nor cancels: the operation's buffers must stay
// valid until it is complete.
// Thread safety: every member may be called from any thread at once.
// Errors: misuse in a fork()ed child, where nothing of the parent's is under way.
class LOCKSTEP_API Work {
 public:
  // Of no operation: every member but this one and the copies throws misuse.
  Work() = default;

  // Blocks until the operation is complete. Errors: what the operation threw; timeout when
  // `deadline` passes first, which leaves the operation under way.
  void wait(Deadline deadline = no_deadline) const;

  // True once it is complete or has failed.
  bool completed() const;

  // What it threw; null while under way and after success.
  std::exception_ptr error() const;

  // Of a completed receive: where the message came from. Otherwise any_source and any_tag.
  Source source() const;

 private:
  friend class ProgressThread;
  friend class PointToPoint;
  struct State;
  explicit Work(std::shared_ptr<State> state);
  State& state() const;

  std::shared_ptr<State> state_;
};

}  // namespace lockstep
