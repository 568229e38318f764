// Metrics of runs: step time and its parts, throughput and efficiency.

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

inline constexpr std::array<StepPhase, step_phases> phases_in_order{
    StepPhase::data, StepPhase::forward,   StepPhase::backward,   StepPhase::reduce,
    StepPhase::wait, StepPhase::optimizer, StepPhase::checkpoint, StepPhase::other};

template <class Values>
double part(const Values& values, StepPhase phase) {
  return values[static_cast<std::size_t>(phase)];
}

using Split = std::array<double, step_phases>;  // Milliseconds per step, by StepPhase.

// Consecutive steps of all ranks.
struct StepBin {
  double step = 0;  // The first.
  double mean_ms = 0;
  double least_ms = 0;
  double most_ms = 0;
};

struct RunFigures {
  std::vector<RankTimes> times;  // Without the first step, of ranks that completed steps.
  std::vector<Split> splits;     // For these ranks.
  Split mean{};
  double step_ms = 0;
  double median_ms = 0;  // 0 without rows of steps, as p99_ms.
  double p99_ms = 0;
  std::optional<Straggler> straggler = {};
  std::vector<StepBin> bins = {};
  double samples_a_step = 0;  // Sum over all ranks.
  double rate = 0;            // Samples per second.
};

// With unknown samples, each rank counts as one and `is_rate_known` is false.
struct Comparison {
  std::vector<RunFile> runs;  // By ascending number of ranks.
  std::vector<RunFigures> figures;
  bool is_rate_known = true;

  // The first run is the base.
  double speed_up(std::size_t run) const { return figures[run].rate / figures.front().rate; }
  double ranks_ratio(std::size_t run) const {
    return static_cast<double>(runs[run].ranks) / runs.front().ranks;
  }
  double efficiency(std::size_t run) const { return speed_up(run) / ranks_ratio(run); }

  // The serial part s of the base's work, by a least squares fit of Amdahl's law. 1 / speed-up = s
  // + (1 - s) / ratio of ranks. Empty without two numbers of ranks.
  std::optional<double> serial_part() const;

  std::size_t largest() const { return runs.size() - 1; }
};

// Errors: corrupt, with the file and how the run ended, if no rank reported a step.
Comparison compare(std::vector<RunFile> runs);

// By Amdahl's law.
double speed_up_at(double serial_part, double ranks_ratio);

}  // namespace lockstep::tools
