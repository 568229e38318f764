// Finds the rank for which the others wait, and the phase in which it is late:
// docs/guide/stragglers.md.
//
//   others waited 41 ms a step (31 %) for rank 3, of which 38 in data.
//
// Thread safety: full.

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
  int rank = 0;  // In the job.
  StepTimes times = {};
  // Part of `times` while the process was stopped, as after SIGSTOP.
  std::chrono::nanoseconds stood_still{0};
};

struct Straggler {
  int rank = -1;
  double waited_ms = 0;  // The others' mean wait for this rank, per step.
  double share = 0;      // As a part of the step, 0 to 1.
  // Phases in which it was slower than the others' mean, and by how many ms per step, at most
  // `waited_ms`. Largest first; none below a tenth of `waited_ms`.
  std::vector<std::pair<StepPhase, double>> late_in = {};
  double stood_still_ms = 0;  // Per step.
};

// An only occasionally late rank is no straggler.
struct StragglerLimits {
  std::int64_t steps = 10;  // Ranks with fewer are ignored.
  double share = 0.03;      // Minimum of the others' wait minus its own, as a part of a step.
  double own_wait = 0.5;    // If the rank itself waits for more than this part of the others' wait,
                            // its phases must explain half of their wait.
  // Minimum of the others' mean wait, summed over all steps.
  std::chrono::milliseconds lost{250};
};

// The rank that costs the others most time; empty if none reaches the limits. A rank missing in
// `ranks` can be found, but without a phase.
LOCKSTEP_API std::optional<Straggler> find_straggler(std::span<const RankTimes> ranks,
                                                     const StragglerLimits& limits = {});

// As above. For a stopped process: "rank 3, of which 38 in forward (its process stood still for 37
// of them)".
LOCKSTEP_API std::string describe(const Straggler& straggler);

}  // namespace lockstep
