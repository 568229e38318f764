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
  void count_step() { steps_.fetch_add(1, std::memory_order_relaxed); }

  // The loop waits in `reduce` until another thread of this process has done its collectives.
  class Lent;

  // That other thread has waited from `begin` to `end` for the rank `last`.
  static void book_wait_of_helper(int last, Ticks begin, Ticks end);

  StepTimes times() const;

  // The ticks of each phase until `now`, for the thread that changes the phases: some nanoseconds.
  std::array<Ticks, step_phases> spent_until(Ticks now) const;

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

// The times of a rank in the last seconds, in the job page. A description, not a guarantee.
struct LOCKSTEP_API StepReport {
  std::atomic<std::int64_t> steps;
  std::array<std::atomic<std::int64_t>, step_phases> spent;  // Nanoseconds.
  std::atomic<std::int32_t> latest_rank;                     // -1 for none.
  std::atomic<std::int64_t> waited_for_it;                   // Nanoseconds.

  void show(const StepTimes& times);
  StepTimes shown() const;
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
