// Means over ranks of logged scalars, without a collective. A mean, over the ranks that logged the
// scalar in a step, is complete once every rank has reported a later step, or its end. Values are
// added in rank order, in whatever order reports arrive.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/toolkit/run_log/rank_report.h"

namespace lockstep::run_log {

struct ScalarMean {
  std::string name;
  std::int64_t step = 0;
  double time = 0;  // When a rank first logged it, in seconds since 1970.
  double value = 0;
};

class ScalarMeans {
 public:
  explicit ScalarMeans(int ranks) : reported_(static_cast<std::size_t>(ranks)) {}

  void add(const RankReport& report);

  // No rank reports any more.
  void end();

  void end_all_but(int rank);

  // In the order of steps.
  std::vector<ScalarMean> take_complete();

 private:
  // All ranks have reported earlier steps.
  std::int64_t complete_until() const;

  std::vector<std::int64_t> reported_;  // By rank: steps before this are reported.

  using ByRank = std::map<int, LoggedScalar>;
  std::map<std::int64_t, std::map<std::string, ByRank>> open_;  // By step and name.
};

}  // namespace lockstep::run_log
