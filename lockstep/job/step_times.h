// Where the time of a training loop goes.
//
//   const lockstep::StepTimes before = lockstep::step_times();
//   train();
//   std::cerr << describe(lockstep::step_times() - before) << '\n';
//
// prints "data 3 %, forward 31 %, backward 52 %, reduce 4 %, wait 5 % for rank 3, optimizer 5 %".
//
// Times are always measured. Loader, DistributedDataParallel and its kin, Pipeline, the optimizers
// of this library, Checkpointer and all collectives enter the phases that they stand for.
// Everything else is `other`, unless the program says what it is:
//
//   const lockstep::InPhase phase(lockstep::StepPhase::data);  // Until the end of the scope.
//
// Phases nest, and the time of an inner one does not count for the outer one: all phases together
// are the time that has passed. A change of phase costs some ten nanoseconds.
//
// Times are those of one thread of the process, the first that enters a phase other than by a
// collective. Once it has ended, the next one may follow. Phases of other threads do not count.
// While the loop waits for a collective that runs in the background, that one's time is the loop's.
//
// Thread safety: any thread may call any function.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "lockstep/base/api.h"

namespace lockstep {

class StepClock;

enum class StepPhase : std::uint8_t {
  other,
  data,        // Waiting for a batch, or making it where nobody makes it ahead.
  forward,     // forward() of a parallel module.
  backward,    // backward(), from where it comes to the output of such a forward().
  reduce,      // Collectives and messages, from when all ranks have come.
  wait,        // Waiting for ranks that come later to a collective, or send a message later.
  optimizer,   // Steps of optimizers, clipping and unscaling of gradients.
  checkpoint,  // Saving and loading, as far as the loop waits for it.
};

inline constexpr std::size_t step_phases = 8;

LOCKSTEP_API const char* name(StepPhase phase);

struct LOCKSTEP_API StepTimes {
  std::int64_t steps = 0;                                     // Averaged backward passes.
  std::array<std::chrono::nanoseconds, step_phases> spent{};  // By phase.

  // The waiting time by the rank that came last, by its number in the job. Of a rank on another
  // host, waits of a millisecond or more.
  std::map<int, std::chrono::nanoseconds> waited_for = {};

  std::chrono::nanoseconds operator[](StepPhase phase) const {
    return spent[static_cast<std::size_t>(phase)];
  }

  // The time that has passed.
  std::chrono::nanoseconds total() const;

  // The rank that was waited for longest; -1 without any.
  int latest_rank() const;
};

// Since the loop's first phase. The phase under way counts.
LOCKSTEP_API StepTimes step_times();

LOCKSTEP_API StepTimes operator-(StepTimes end, const StepTimes& begin);

// All phases that took half a percent or more, as above. Empty without any time.
LOCKSTEP_API std::string describe(const StepTimes& times);

// The share of `phase`, such as "data 3 %" or "wait 5 % for rank 3".
LOCKSTEP_API std::string describe(const StepTimes& times, StepPhase phase);

// The loop of this thread is in `phase` while this exists, unless an inner one exists.
class LOCKSTEP_API InPhase {
 public:
  explicit InPhase(StepPhase phase);
  ~InPhase();
  InPhase(const InPhase&) = delete;
  InPhase& operator=(const InPhase&) = delete;

 private:
  StepClock* const clock_;  // Null on a thread that does not count.
  StepPhase before_ = StepPhase::other;
};

}  // namespace lockstep
