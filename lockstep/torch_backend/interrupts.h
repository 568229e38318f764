// Lets Ctrl-C end a call that waits for other ranks.
//
// Python handles signals between bytecode instructions, and a blocking call is one. SIGINT
// therefore aborts the group for which the main thread waits. The call fails, and Python raises
// KeyboardInterrupt.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/torch_backend/membership.h"

namespace lockstep::torch_backend {

// Installs a SIGINT handler, which then calls the previous one. Call it on Python's main thread,
// once per process.
void catch_interrupts();

// Exists while its thread waits for ranks of `group`, which must outlive it. May be nested. No
// effect except on Python's main thread.
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

}  // namespace lockstep::torch_backend
