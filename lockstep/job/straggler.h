// Finds the rank for which the others wait, and the phase in which it is late.
//
//   others waited 41 ms a step (31 %) for rank 3, of which 38 in data.
//
// Ranks leave a collective together, so the wait for a late rank is the sum of the differences
// between its phases and theirs: docs/guide/stragglers.md.
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

// The times of one rank, over about the same steps as the others'.
struct RankTimes {
  int rank = 0;  // Numbered in the job.
  StepTimes times = {};
  // The part of `times` while the process was stopped, as after SIGSTOP.
  std::chrono::nanoseconds stood_still{0};
};

struct Straggler {
  int rank = -1;
  double waited_ms = 0;  // Mean wait of the others for this rank, per step.
  double share = 0;      // As a part of the step, 0 to 1.
  // Phases in which it was slower than the mean of the others, longest first, in ms per step.
  // Each is at least a tenth of the wait, and not longer than the wait.
  std::vector<std::pair<StepPhase, double>> late_in = {};
  double stood_still_ms = 0;  // Per step.
};

// A rank that is only occasionally late is no straggler.
struct StragglerLimits {
  std::int64_t steps = 10;  // Minimum.
  double share = 0.03;      // Minimum of the others' wait minus its own, as a part of a step.
  double own_wait = 0.5;    // If its own wait is a larger part of theirs, its phases must explain
                            // half of theirs.
  // Minimum wait of the others in all steps together.
  std::chrono::milliseconds lost{250};
};

// The rank that costs the others most time; empty if no rank reaches the limits. A rank missing in
// `ranks` can be found, but without a phase.
LOCKSTEP_API std::optional<Straggler> find_straggler(std::span<const RankTimes> ranks,
                                                     const StragglerLimits& limits = {});

// As above. For a stopped process: "rank 3, of which 38 in forward (its process stood still for 37
// of them)".
LOCKSTEP_API std::string describe(const Straggler& straggler);

}  // namespace lockstep
