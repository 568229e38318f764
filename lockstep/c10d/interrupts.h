// Lets Ctrl-C end a call that waits for other ranks.
//
// Python handles signals between bytecode instructions, and a blocking call is one. SIGINT
// therefore aborts the group for which the main thread waits. The call then fails, and Python
// raises KeyboardInterrupt.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/c10d/membership.h"

namespace lockstep::c10d {

// Installs a SIGINT handler that then calls the previous one. Call it once, on Python's main
// thread.
void catch_interrupts();

// While it exists, its thread waits for ranks of `group`, which must outlive it. Objects may be
// nested. No effect except on Python's main thread.
// Errors: the constructor throws KeyboardInterrupt if SIGINT arrived just before it.
class Interruptible {
 public:
  explicit Interruptible(Membership& group);
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  const bool is_on_;
  Membership* outer_ = nullptr;
};

}  // namespace lockstep::c10d
