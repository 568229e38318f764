// Ctrl-C ends a call that waits for other ranks.
//
// Python handles a signal between two of its instructions, and a call that waits for other ranks is
// one instruction, however long it takes. So SIGINT aborts the group for which Python's main thread
// waits. The call ends then, and Python raises KeyboardInterrupt.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/c10d/membership.h"

namespace lockstep::c10d {

// From now on SIGINT does so, before it goes on to its present handler. Call it once, on Python's
// main thread.
void catch_interrupts();

// While it exists, its thread waits for other ranks of `group`, which must live longer.
// Thread safety: any thread may have one at a time; only that of Python's main thread matters.
class Interruptible {
 public:
  explicit Interruptible(Membership& group);
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  const bool is_on_;
  Membership* outer_ = nullptr;  // Of the wait within which this one is.
};

}  // namespace lockstep::c10d
