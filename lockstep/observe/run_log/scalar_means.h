// Means over ranks of logged scalars, without a collective. A mean is complete once every rank has
// reported a later step, or its end. It covers the ranks that logged the scalar in that step.
// Values are added in rank order, so the mean does not depend on when reports arrive.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/observe/run_log/rank_report.h"

namespace lockstep::observe {

struct ScalarMean {
  std::string name;
  std::int64_t step = 0;
  double time = 0;  // When the first of these ranks logged it, in seconds since 1970.
  double value = 0;
};

class ScalarMeans {
 public:
  explicit ScalarMeans(int ranks) : reported_(static_cast<std::size_t>(ranks)) {}

  void add(const RankReport& report);

  // No more reports arrive, from any rank.
  void end();

  // The same for all ranks but `rank`.
  void end_all_but(int rank);

  // In the order of steps.
  std::vector<ScalarMean> take_complete();

 private:
  // All ranks have reported all steps before it.
  std::int64_t complete_until() const;

  std::vector<std::int64_t> reported_;  // By rank: all steps before this one have been reported.

  using ByRank = std::map<int, LoggedScalar>;
  std::map<std::int64_t, std::map<std::string, ByRank>> open_;  // By step and name.
};

}  // namespace lockstep::observe
