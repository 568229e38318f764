// Measures where the time of a training loop goes.
//
// Example: with `before` from step_times(), describe(step_times() - before) returns
// "data 3 %, forward 83 %, wait 5 % for rank 3, optimizer 9 %".
//
// DataLoader, parallel modules, Pipeline, this library's optimizers, Checkpointer and collectives
// enter their phases. All other time is `other`, unless the program uses InPhase. Phases nest; time
// counts for the innermost one.
//
// One thread is measured: the first that enters a phase other than by a collective; after its end,
// another. While it waits for a background collective, the collective's times count.
//
// Thread safety: full.

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
  data,        // Waiting for a batch, or making it without a prefetching thread.
  forward,     // A parallel module's forward().
  backward,    // From the gradient of a parallel module's output on.
  reduce,      // Collectives and messages, after all ranks have joined.
  wait,        // Waiting for ranks that join a collective or send a message later.
  optimizer,   // Optimizer steps, clipping and unscaling of gradients.
  checkpoint,  // Saving and loading, as far as it blocks the loop.
};

inline constexpr std::size_t step_phases = 8;

LOCKSTEP_API const char* name(StepPhase phase);

struct LOCKSTEP_API StepTimes {
  std::int64_t steps = 0;  // Backward passes that average gradients.
  std::array<std::chrono::nanoseconds, step_phases> spent{};  // By phase.

  // Waiting time by the last rank to join, numbered in the job; 1023 includes higher ones. For
  // ranks on other hosts, only waits of a millisecond or more count.
  std::map<int, std::chrono::nanoseconds> waited_for = {};

  std::chrono::nanoseconds operator[](StepPhase phase) const {
    return spent[static_cast<std::size_t>(phase)];
  }

  std::chrono::nanoseconds total() const;

  // The rank with the most time in waited_for; -1 if it is empty.
  int latest_rank() const;
};

// Since the loop's first phase, including the current one.
LOCKSTEP_API StepTimes step_times();

LOCKSTEP_API StepTimes operator-(StepTimes end, const StepTimes& begin);

// All phases of half a percent or more; empty without any time.
LOCKSTEP_API std::string describe(const StepTimes& times);

// "data 3 %" or "wait 5 % for rank 3".
LOCKSTEP_API std::string describe(const StepTimes& times, StepPhase phase);

// While it exists, this thread's loop is in `phase`, except in inner phases.
class LOCKSTEP_API InPhase {
 public:
  explicit InPhase(StepPhase phase);
  ~InPhase();
  InPhase(const InPhase&) = delete;
  InPhase& operator=(const InPhase&) = delete;

 private:
  StepClock* const clock_;  // Null on a thread that is not measured.
  StepPhase before_ = StepPhase::other;
};

}  // namespace lockstep
