// A fiber: a function with a stack of its own that suspends itself.
//
// Thread safety: one thread uses all fibers.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>

namespace lockstep::simulation {

// Unwinds the stack of a fiber whose process has died. Not a std::exception, so that the code of
// the process does not handle it.
struct Killed {};

class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  ~Fiber();  // The body must have ended, or never have begun.
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body until it suspends itself or ends. Only outside of fibers.
  void resume();

  // Returns to the caller of resume(). Only within this fiber.
  void suspend();

  bool has_ended() const { return has_ended_; }

  // After the end: releases the stack and the body.
  void release();

 private:
  // The state of the C++ runtime that belongs to a stack: __cxa_eh_globals of the Itanium ABI.
  struct Exceptions {
    void* caught = nullptr;
    unsigned int uncaught = 0;
  };

  static void begin(unsigned int high, unsigned int low);
  void swap_exceptions();
  void switch_to(ucontext_t& from, const ucontext_t& to);

  std::function<void()> body_;
  std::byte* stack_;
  ucontext_t inside_{};
  ucontext_t outside_{};
  Exceptions exceptions_;  // Belongs to the side that does not run.
  bool has_ended_ = false;
};

}  // namespace lockstep::simulation
