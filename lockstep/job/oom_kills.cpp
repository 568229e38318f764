// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/oom_kills.h"

namespace lockstep::job {

void OomKills::begin(std::optional<std::uint64_t> kills) {
  attributed_ = seen_ = kills ? static_cast<std::int64_t>(*kills) : -1;
}

std::optional<bool> OomKills::judge(std::optional<std::uint64_t> kills, Clock::time_point now) {
  if (attributed_ < 0 || !kills) return std::nullopt;
  const Clock::time_point previous{Clock::duration(noticed_)};
  // The other kills were not of ranks: perhaps of another program in the cgroup.
  if (now - previous > time_to_notice) attributed_ = seen_;
  seen_ = static_cast<std::int64_t>(*kills);
  noticed_ = now.time_since_epoch().count();
  const bool is_oom = seen_ > attributed_;
  if (is_oom) ++attributed_;
  return is_oom;
}

}  // namespace lockstep::job
