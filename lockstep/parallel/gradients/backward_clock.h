// Tells the training loop's clock (job/step_times.h) of backward passes, which autograd may run on
// a thread of its own while the loop's thread waits.
//
// Thread safety: as backward() itself: one call at a time.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/autograd/engine.h>

#include <memory>

#include "lockstep/job/step_clock.h"

namespace lockstep::parallel {

class BackwardClock {
 public:
  // On the loop's thread, before a pass.
  void set_loop() { loop_ = StepClock::of_this_thread(); }

  // Null if that thread has none.
  StepClock* loop() const { return loop_; }

  // Within backward(), also several times. The phase ends with it, after all that was queued
  // before, or with the exception that ends it.
  void begin() {
    const auto last = pass_.lock();
    if (loop_ == nullptr || (last && !last->is_over())) return;
    const auto pass = std::make_shared<Pass>(*loop_);
    pass_ = pass;
    torch::autograd::Engine::get_default_engine().queue_callback([pass] { pass->end(); });
  }

 private:
  class Pass {
   public:
    explicit Pass(StepClock& loop) : loop_(loop), before_(loop.enter(StepPhase::backward)) {}
    ~Pass() { end(); }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    bool is_over() const { return is_over_; }
    void end() {
      if (!is_over_) loop_.enter(before_);
      is_over_ = true;
    }

   private:
    StepClock& loop_;
    const StepPhase before_;  // The phase that the pass has interrupted.
    bool is_over_ = false;
  };

  StepClock* loop_ = nullptr;
  std::weak_ptr<Pass> pass_;  // Autograd has it while it runs backward().
};

}  // namespace lockstep::parallel
