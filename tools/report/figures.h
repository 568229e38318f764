// Figures of runs: the length of a step and what it consists of, throughput, efficiency, and the
// part of the work that does not scale.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/job/step_times.h"
#include "lockstep/job/straggler.h"
#include "tools/report/run_file.h"

namespace lockstep::tools {

// In the order of a step, in which tables and charts have them.
inline constexpr std::array<StepPhase, step_phases> phases_in_order{
    StepPhase::data, StepPhase::forward,   StepPhase::backward,   StepPhase::reduce,
    StepPhase::wait, StepPhase::optimizer, StepPhase::checkpoint, StepPhase::other};

// The part of `phase` in a list by phase.
template <class Values>
double part(const Values& values, StepPhase phase) {
  return values[static_cast<std::size_t>(phase)];
}

using Split = std::array<double, step_phases>;  // Milliseconds a step, by StepPhase.

// Some steps in succession, of all ranks.
struct StepBin {
  double step = 0;  // The first.
  double mean_ms = 0;
  double least_ms = 0;
  double most_ms = 0;
};

struct RunFigures {
  std::vector<RankTimes> times;  // Of the ranks that have made steps, without the first step.
  std::vector<Split> splits;     // Of the same ranks.
  Split mean{};                  // Over these ranks.
  double step_ms = 0;
  double median_ms = 0;  // 0 without rows of steps, as the next.
  double p99_ms = 0;
  std::optional<Straggler> straggler = {};
  std::vector<StepBin> bins = {};
  double samples_a_step = 0;  // Of all ranks.
  double rate = 0;            // Samples a second.
};

// Samples that nobody told count as one for each rank: `is_rate_known` is false then.
struct Comparison {
  std::vector<RunFile> runs;  // By rising number of ranks.
  std::vector<RunFigures> figures;
  bool is_rate_known = true;

  // The first run is the base.
  double speed_up(std::size_t run) const { return figures[run].rate / figures.front().rate; }
  double ranks_ratio(std::size_t run) const {
    return static_cast<double>(runs[run].ranks) / runs.front().ranks;
  }
  double efficiency(std::size_t run) const { return speed_up(run) / ranks_ratio(run); }

  // The part of the base's work that does not scale, by a least squares fit of Amdahl's law
  // 1 / speed-up = s + (1 - s) / ratio of ranks. Empty without two numbers of ranks.
  std::optional<double> serial_part() const;

  // The largest run: the one that what-if questions are about.
  std::size_t largest() const { return runs.size() - 1; }
};

// Errors: corrupt for a run in which no rank has told of a step. The message names its file, and
// how it ended.
Comparison compare(std::vector<RunFile> runs);

// The speed-up of Amdahl's law.
double speed_up_at(double serial_part, double ranks_ratio);

}  // namespace lockstep::tools
