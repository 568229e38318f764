// Finds the fastest division of a host for a program.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/tune/divisions.h"
#include "tools/tune/measure_division.h"
#include "tools/tune/step_rate.h"

namespace lockstep::tools {

// Over all runs. Without a speed, `problem` and `output` are the failed run's.
struct TunedDivision {
  Division division = {};
  std::optional<Rate> samples_per_second = {};  // Mean of the runs' medians, and their range.
  std::int64_t memory = 0;                      // As in DivisionRun.
  double wait = 0;
  int runs = 0;
  std::string problem = {};
  std::string output = {};
};

struct Tuning {
  std::vector<TunedDivision> divisions = {};  // In the order of first runs.
  std::optional<std::size_t> best = {};       // Empty if no division could be measured.
  int signal = 0;                             // Ended the tuning early; 0 for none.
};

// Runs one division once and reports the progress.
using RunDivision = std::function<DivisionRun(const Division& division,
                                              const std::function<void(const std::string&)>& show)>;

// Measures all divisions once, those within 15 % of the best a second time, and those within 4 % a
// third time. The second round has the reverse order, so that a drift of the host's speed affects
// all alike.
// `show` gets the progress in one line.
Tuning tune(const std::vector<Division>& divisions, int global_batch, const RunDivision& run,
            const std::function<void(const std::string&)>& show);

}  // namespace lockstep::tools
