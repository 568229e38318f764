// Finds the rank for which the others wait, and the phase in which it is late.
//
//   others waited 41 ms a step (31 %) for rank 3, of which 38 in data
//
// Each rank measures for which rank each collective waited, and its own time in each phase. Ranks
// leave a collective together. A rank that joins 41 ms after the others therefore spent 41 ms more
// outside of collectives. These 41 ms are the sum of the differences between its phases and theirs.
// A rank that is slow in backward() is thus found in backward(). The length of backward() alone
// would mislead: the others wait in it.
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

// The times of one rank over about the same steps as those of the others.
struct RankTimes {
  int rank = 0;  // In the job.
  StepTimes times = {};
  // The part of `times` during which the process was stopped, as after SIGSTOP.
  std::chrono::nanoseconds stood_still{0};
};

struct Straggler {
  int rank = -1;
  double waited_ms = 0;  // Mean wait of the other ranks for this one, per step.
  double share = 0;      // As a part of the step, 0 to 1.
  // Phases in which this rank was slower than the mean of the others, longest first, in ms per
  // step. Contains those of at least a tenth of the wait. None is longer than the wait.
  std::vector<std::pair<StepPhase, double>> late_in = {};
  double stood_still_ms = 0;  // Per step.
};

// Conditions for a straggler. A rank that is only occasionally late, as others are, is not one.
struct StragglerLimits {
  std::int64_t steps = 10;  // Minimum.
  double share = 0.03;      // Minimum of the others' wait minus its own, as a part of a step.
  double own_wait = 0.5;    // Its own wait, as a part of theirs: above this, its phases must
                            // explain half of theirs.
  // Minimum wait of the others in all steps together; less is not worth a report.
  std::chrono::milliseconds lost{250};
};

// Returns the rank that costs the others most time; empty if no rank meets the limits. `ranks` may
// omit ranks of the job; such a rank can be found, but without a phase.
LOCKSTEP_API std::optional<Straggler> find_straggler(std::span<const RankTimes> ranks,
                                                     const StragglerLimits& limits = {});

// As above. If the process was stopped: "rank 3, of which 38 in forward (its process stood still
// for 37 of them)".
LOCKSTEP_API std::string describe(const Straggler& straggler);

}  // namespace lockstep
