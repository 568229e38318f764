// Reports backward passes, which autograd may run on another thread, to the training loop's clock
// (job/step_times.h).
//
// Thread safety: one call at a time, as backward() itself.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/autograd/engine.h>

#include <memory>

#include "lockstep/job/step_clock.h"

namespace lockstep::parallel {

class BackwardClock {
 public:
  // Call this on the loop's thread, before a pass.
  void set_loop() { loop_ = StepClock::of_this_thread(); }

  // May be null.
  StepClock* loop() const { return loop_; }

  // Call this within backward(); may be repeated. The phase ends with backward(), after all
  // callbacks queued before, or with its exception.
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
    const StepPhase before_;
    bool is_over_ = false;
  };

  StepClock* loop_ = nullptr;
  std::weak_ptr<Pass> pass_;  // Owned by autograd while it runs backward().
};

}  // namespace lockstep::parallel
