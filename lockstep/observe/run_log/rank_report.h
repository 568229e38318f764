// The part of a training that a rank reports to rank 0: its steps, the scalars that it has logged,
// and where its time went so far.
//
// Ranks of one job exchange reports as bytes; no other version reads them.
// Errors: corrupt for bytes that are no report.

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

namespace lockstep::observe {

// Seconds of one step: all, then each phase's.
using StepRow = std::array<float, 1 + step_phases>;

struct LoggedScalar {
  std::int64_t step = 0;
  double time = 0;  // Seconds since 1970.
  double value = 0;
};

struct RankReport {
  int rank = 0;
  std::int64_t step = 0;     // The step under way. All scalars of earlier ones have been reported.
  std::int64_t samples = 0;  // Of `rows`.
  bool is_last = false;      // Nothing comes after it.
  std::vector<StepRow> rows = {};  // The steps since the rank's last report.
  std::map<std::string, std::vector<LoggedScalar>, std::less<>> scalars = {};  // The same, by name.
  // Since the log began. `waited_for` leaves out its first step: ranks begin at different times.
  StepTimes times = {};
};

std::string encode(const RankReport& report);
RankReport decode(std::string_view bytes);

}  // namespace lockstep::observe
