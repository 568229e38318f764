// The clock behind step_times(), and what a rank's job page shows of it.
//
// Thread safety: one thread changes the phases of a clock; any thread may read it.

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
  // The clock of the training loop that the calling thread runs; null on every other thread.
  static StepClock* of_this_thread();

  // The same. A thread without a clock gets that of the process, unless another one has it.
  static StepClock* adopted();

  static StepClock& of_process();

  // The calling thread's, while it exists. For ranks that are threads of one process.
  class OfThread;

  // Returns the phase that it leaves.
  StepPhase enter(StepPhase next, Ticks now = ticks_now());

  // The phase `wait` becomes `reduce`: all ranks have come, `last` at `now`. Without `last`, nobody
  // had to be waited for, and the whole time is of `reduce`.
  void end_wait(std::optional<int> last, Ticks now);

  std::int64_t steps() const { return steps_.load(std::memory_order_relaxed); }
  void count_step();

  // The loop waits in `reduce` until another thread of this process has done its collectives.
  class Lent;

  // That other thread has waited from `begin` to `end` for the rank `last`.
  static void book_wait_of_helper(int last, Ticks begin, Ticks end);

  StepTimes times() const;

  // The ticks of each phase until `now`, for the thread that changes the phases: some nanoseconds.
  std::array<Ticks, step_phases> spent_until(Ticks now) const;

  // The times since the end of the first step, which is not among its steps. Ranks begin to work
  // at different times; from here on, they work together. Empty before.
  StepTimes since_first_step() const;

 private:
  static constexpr std::size_t most_ranks = 1024;  // The last entry has all ranks beyond, too.

  template <class Change>
  void change(Change change);
  void end_interrupted_change();
  void spend(StepPhase phase, Ticks until);
  void record(TimelineRecorder& recorder, StepPhase phase, Ticks begin, Ticks end) const;

  // Odd while the next four are being changed.
  std::atomic<std::uint64_t> version_{0};
  std::atomic<StepPhase> phase_{StepPhase::other};
  std::atomic<Ticks> since_{0};  // Of what is not yet in `spent_`. 0 before the first phase.
  std::array<std::atomic<Ticks>, step_phases> spent_{};
  std::array<std::atomic<Ticks>, most_ranks> waited_{};

  std::atomic<std::int64_t> steps_{0};
  StepTimes first_step_;  // Never changes once it is known.
  std::atomic<bool> first_step_is_known_{false};
  std::atomic<Ticks> lent_since_{0};  // 0 when it is not lent.
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

// --- What others see ----------------------------------------------------------------------------

// A rank's StepTimes in memory that processes share. A description, not a guarantee: a reader may
// see numbers of two calls of show().
class LOCKSTEP_API SharedStepTimes {
 public:
  void show(const StepTimes& times);

  // Of the ranks that were waited for, the longest waits.
  StepTimes shown() const;

 private:
  struct Wait {
    std::atomic<std::int32_t> rank;
    std::atomic<std::int64_t> time;  // Nanoseconds; 0 for none.
  };
  static constexpr std::size_t most_waits = 8;

  std::atomic<std::int64_t> steps_;
  std::array<std::atomic<std::int64_t>, step_phases> spent_;  // Nanoseconds.
  std::array<Wait, most_waits> waits_;
};

// What a rank's job page shows of its training loop.
struct StepReport {
  SharedStepTimes recent;                 // The last seconds.
  SharedStepTimes whole;                  // StepClock::since_first_step().
  std::atomic<std::int64_t> stood_still;  // Nanoseconds, as RankTimes has it, in `whole`.

  // For a new process.
  void reset() {
    recent.show({});
    whole.show({});
    stood_still = 0;
  }
};

// The times of the last ten seconds.
class LOCKSTEP_API RecentTimes {
 public:
  static constexpr std::chrono::seconds interval{1};

  // To be called once in each interval, with the times so far.
  StepTimes since_then(StepTimes now);

 private:
  std::deque<StepTimes> past_;
};

}  // namespace lockstep
