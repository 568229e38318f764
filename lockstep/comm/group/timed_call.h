// Adds one call to the times of the training loop (job/step_times.h): the wait for other ranks, and
// the rest.
//
// Thread safety: one thread. Without a training loop, it counts only while a loop waits for this
// thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "lockstep/job/activity.h"
#include "lockstep/job/step_clock.h"

namespace lockstep::comm {

class TimedCall {
 public:
  explicit TimedCall(Ticks begin) : clock_(StepClock::of_this_thread()), begin_(begin) {
    if (clock_ != nullptr) before_ = clock_->enter(StepPhase::wait, begin);
  }
  ~TimedCall() {
    if (clock_ != nullptr) clock_->enter(before_);
  }
  TimedCall(const TimedCall&) = delete;
  TimedCall& operator=(const TimedCall&) = delete;

  // As CallSpan::all_entered().
  void end_wait(std::optional<int> last) const {
    if (clock_ != nullptr)
      clock_->end_wait(last, last ? ticks_now() : 0);
    else if (last)
      StepClock::book_wait_of_helper(*last, begin_, ticks_now());
  }

 private:
  StepClock* const clock_;
  StepPhase before_ = StepPhase::other;
  const Ticks begin_;
};

}  // namespace lockstep::comm
