// Means over ranks of the scalars that they log, without a collective: ranks may log different
// scalars, and differently often.
//
// A mean is complete once every rank has reported a later step, or its end. It is the mean over the
// ranks that have logged the scalar in that step; of a rank that has done so several times, the
// last value counts. Values are added in the order of ranks, so the mean does not depend on when
// reports come.

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

  // No reports come any more, from any rank.
  void end();

  // As above, but from `rank`.
  void end_all_but(int rank);

  // In the order of steps.
  std::vector<ScalarMean> take_complete();

 private:
  // The steps before it have been reported by all ranks.
  std::int64_t complete_until() const;

  std::vector<std::int64_t> reported_;  // By rank: all steps before this one have been.

  using ByRank = std::map<int, LoggedScalar>;
  std::map<std::int64_t, std::map<std::string, ByRank>> open_;  // By step and name.
};

}  // namespace lockstep::observe
