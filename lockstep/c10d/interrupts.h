// Lets Ctrl-C end a call that waits for other ranks.
//
// Python handles signals between two bytecode instructions, and a blocking call is one instruction.
// SIGINT therefore aborts the group for which Python's main thread waits. The call then fails, and
// Python raises KeyboardInterrupt. A rank that still waits for its group in a store polls for
// signals: throw_if_interrupted() of errors.h.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/c10d/membership.h"

namespace lockstep::c10d {

// Installs a SIGINT handler that aborts the group, and then calls the previous handler. Call it
// once, on Python's main thread.
void catch_interrupts();

// While it exists, its thread waits for other ranks of `group`, which must outlive it. Objects may
// be nested.
// Thread safety: any thread may have one. Only those of Python's main thread have an effect.
// Errors: the constructor throws KeyboardInterrupt if SIGINT arrived just before it.
class Interruptible {
 public:
  explicit Interruptible(Membership& group);
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  const bool is_on_;
  Membership* outer_ = nullptr;  // The membership of the enclosing object.
};

}  // namespace lockstep::c10d
