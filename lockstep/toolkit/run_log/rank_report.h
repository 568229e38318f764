// A rank's report to rank 0: its steps, its logged scalars, and how its time was spent so far.
// Errors: corrupt for bytes that are not a report.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/job/step_times.h"

namespace lockstep::run_log {

// Seconds of one step: all, then each phase's.
using StepRow = std::array<float, 1 + step_phases>;

struct LoggedScalar {
  std::int64_t step = 0;
  double time = 0;  // Seconds since 1970.
  double value = 0;
};

struct RankReport {
  int rank = 0;
  std::int64_t step = 0;           // Current: this or a past report has all earlier scalars.
  std::int64_t samples = 0;        // In `rows`.
  bool is_last = false;            // No report follows.
  std::vector<StepRow> rows = {};  // Since the last report.
  std::map<std::string, std::vector<LoggedScalar>, std::less<>> scalars = {};  // By name.
  // Since the log began. `waited_for` excludes the first step, which ranks begin at different
  // times.
  StepTimes times = {};
};

std::string encode(const RankReport& report);
RankReport decode(std::string_view bytes);

}  // namespace lockstep::run_log
