// Ctrl-C ends a call that waits for other ranks.
//
// Python handles a signal between two of its instructions, and a call that waits for other ranks is
// one instruction, however long it takes. So SIGINT aborts the group for which Python's main thread
// waits. The call ends then, and Python raises KeyboardInterrupt. A rank that still waits for its
// group in a store looks for signals itself: throw_if_interrupted() of errors.h.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/c10d/membership.h"

namespace lockstep::c10d {

// From now on SIGINT does so, before it goes on to its present handler. Call it once, on Python's
// main thread.
void catch_interrupts();

// While it exists, its thread waits for other ranks of `group`, which must live longer. One may
// exist within another one.
// Thread safety: any thread may have one; only those of Python's main thread matter.
// Errors: the constructor throws KeyboardInterrupt if SIGINT came just before it.
class Interruptible {
 public:
  explicit Interruptible(Membership& group);
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  const bool is_on_;
  Membership* outer_ = nullptr;  // That of the wait within which this one is.
};

}  // namespace lockstep::c10d
