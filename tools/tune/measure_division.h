// Runs a program in one division of the host and measures its speed.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/tune/divisions.h"
#include "tools/tune/step_rate.h"

namespace lockstep::tools {

// Without a rate, `problem` has the reason in one line, and `output` the last lines of the program
// and its launcher.
struct DivisionRun {
  std::optional<Rate> steps_per_second = {};
  std::int64_t memory = 0;  // Resident bytes of all ranks, each including shared memory.
  double wait = 0;          // Mean share of the time in which ranks wait for others.
  std::string problem = {};
  std::string output = {};
  int signal = 0;  // SIGINT, SIGTERM or SIGHUP if it ended this run.
};

struct RunLimits {
  std::chrono::milliseconds start = std::chrono::minutes(2);     // Until the first step.
  std::chrono::milliseconds measured = std::chrono::seconds(8);  // After the first steps.
};

// Starts `program` under `lockstep run` and ends it with SIGKILL once its rate is reliable, or at
// the limit. `show` gets the progress in one line. Blocking. Errors: system.
DivisionRun measure_division(const Division& division, const std::vector<std::string>& program,
                             const RunLimits& limits,
                             const std::function<void(const std::string&)>& show);

// From now on, SIGINT and SIGTERM end the current and all further runs.
void end_runs_at_signals();

}  // namespace lockstep::tools
