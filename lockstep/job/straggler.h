// The rank for which the others wait, and the phase in which it is late.
//
//   others waited 41 ms a step (31 %) for rank 3, of which 38 in data
//
// Nothing is guessed. Each rank measures for which rank each collective has waited, and its own
// time in each phase. Ranks leave a collective together, so a rank that comes 41 ms after the
// others has spent 41 ms more than they have outside of collectives. These 41 ms are the sum of the
// differences between its phases and theirs. A rank that is slow in backward() is thus found in
// backward(), where guesses from the length of backward() take it for the fast one: the others
// wait for it there.
//
// Thread safety: any thread may call any function.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/job/step_times.h"

namespace lockstep {

// The times of one rank over the same steps as those of the others, or nearly so.
struct RankTimes {
  int rank = 0;  // In the job.
  StepTimes times = {};
  // The part of them during which the process did not run at all, as after SIGSTOP.
  std::chrono::nanoseconds stood_still{0};
};

struct Straggler {
  int rank = -1;
  double waited_ms = 0;  // Of another rank for this one, in a step: the mean over the others.
  double share = 0;      // Of a step, 0 to 1.
  // In which phases this rank was longer than the mean of the others, longest first, in ms a step:
  // those with a tenth of the wait or more. None is longer than the wait.
  std::vector<std::pair<StepPhase, double>> late_in = {};
  double stood_still_ms = 0;  // In a step.
};

// What a verdict needs. A rank that is late now and then, in turn with others, is no straggler.
struct StragglerLimits {
  std::int64_t steps = 10;  // At least.
  double share = 0.03;      // Wait of the others less its own, as a part of a step.
  double own_wait = 0.5;    // Its own wait, as a part of theirs: with more, its phases must explain
                            // half of theirs.
  // Wait of the others in all steps. Nobody looks for the cause of less.
  std::chrono::milliseconds lost{250};
};

// Returns the rank that costs the others most time; empty if there is none, by the limits. `ranks`
// may lack some of the job: a rank that is not among them is named without a phase.
LOCKSTEP_API std::optional<Straggler> find_straggler(std::span<const RankTimes> ranks,
                                                     const StragglerLimits& limits = {});

// As above. A process that stood still is told: "rank 3, of which 38 in forward (its process stood
// still for 37 of them)".
LOCKSTEP_API std::string describe(const Straggler& straggler);

}  // namespace lockstep
