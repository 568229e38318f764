// The clock behind step_times(), and its shared copy in the job control block.
//
// Thread safety: one thread changes a clock's phases; any thread may read it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "lockstep/base/api.h"
#include "lockstep/job/activity.h"
#include "lockstep/job/step_times.h"

namespace lockstep {

class TimelineRecorder;

class LOCKSTEP_API StepClock {
 public:
  // The clock of the training loop on this thread; null on any other thread.
  static StepClock* of_this_thread();

  // This thread's clock. Without one, it gets the process's; null if another thread has that.
  static StepClock* adopted();

  static StepClock& of_process();

  // For ranks that are threads of one process.
  class OfThread;

  // Returns the previous phase.
  StepPhase enter(StepPhase next, Ticks now = ticks_now());

  // Ends the phase `wait` and begins `reduce`: all ranks have joined, rank `last` at `now`. Without
  // `last`, no rank was late, and the wait counts as `reduce`.
  void end_wait(std::optional<int> last, Ticks now);

  std::int64_t steps() const { return steps_.load(std::memory_order_relaxed); }
  void count_step();

  // While it exists, the loop waits in `reduce` for another thread's collectives.
  class Lent;

  // For other threads than the loop's: records that this one waited from `begin` to `end` for rank
  // `last`. Only time in which the loop waits for another thread counts.
  static void book_wait_of_helper(int last, Ticks begin, Ticks end);

  StepTimes times() const;

  // Ticks of each phase until `now`. Only for the thread that changes the phases.
  std::array<Ticks, step_phases> spent_until(Ticks now) const;

  // Without the first step, because ranks start at different times; empty before its end.
  StepTimes since_first_step() const;

 private:
  static constexpr std::size_t most_ranks = 1024;  // In waited_; the last includes higher ranks.

  template <class Change>
  void change(Change change);
  void end_interrupted_change();
  void spend(StepPhase phase, Ticks until);
  void record(TimelineRecorder& recorder, StepPhase phase, Ticks begin, Ticks end) const;

  // Odd while the next four members are changing.
  std::atomic<std::uint64_t> version_{0};
  std::atomic<StepPhase> phase_{StepPhase::other};
  std::atomic<Ticks> since_{0};  // Start of the time not yet in `spent_`; 0 before the first phase.
  std::array<std::atomic<Ticks>, step_phases> spent_{};
  std::array<std::atomic<Ticks>, most_ranks> waited_{};

  std::atomic<std::int64_t> steps_{0};
  StepTimes first_step_;
  std::atomic<bool> first_step_is_known_{false};
  std::atomic<Ticks> lent_since_{0};  // Start of the loop's wait for another thread, or 0.
  std::atomic<Ticks> lent_wait_{0};
  std::atomic<int> lent_last_{0};
};

class LOCKSTEP_API StepClock::OfThread {
 public:
  OfThread();
  ~OfThread();
  OfThread(const OfThread&) = delete;
  OfThread& operator=(const OfThread&) = delete;

 private:
  StepClock clock_;
};

class LOCKSTEP_API StepClock::Lent {
 public:
  Lent();
  ~Lent();
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

 private:
  StepClock* const clock_;
  StepPhase before_ = StepPhase::other;
  Ticks begin_ = 0;
};

// StepTimes in shared memory. A reader may see a mixture of two calls of show().
class LOCKSTEP_API SharedStepTimes {
 public:
  void show(const StepTimes& times);

  // Only the longest waits of `waited_for`.
  StepTimes shown() const;

 private:
  struct Wait {
    std::atomic<std::int32_t> rank;
    std::atomic<std::int64_t> time;  // Nanoseconds; 0 if unused.
  };
  static constexpr std::size_t most_waits = 8;

  std::atomic<std::int64_t> steps_;
  std::array<std::atomic<std::int64_t>, step_phases> spent_;  // Nanoseconds.
  std::array<Wait, most_waits> waits_;
};

// A rank's training times in the job control block.
struct StepReport {
  SharedStepTimes recent;                 // RecentTimes.
  SharedStepTimes whole;                  // StepClock::since_first_step().
  std::atomic<std::int64_t> stood_still;  // Nanoseconds of `whole` while the rank was stopped.

  void reset() {
    recent.show({});
    whole.show({});
    stood_still = 0;
  }
};

// Times of the last ten seconds.
class LOCKSTEP_API RecentTimes {
 public:
  static constexpr std::chrono::seconds interval{1};

  // Call it once per interval, with the total times so far.
  StepTimes since_then(StepTimes now);

 private:
  std::deque<StepTimes> past_;
};

}  // namespace lockstep
