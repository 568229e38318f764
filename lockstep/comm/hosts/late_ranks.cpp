// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/late_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/log.h"
#include "lockstep/base/text.h"

namespace lockstep::comm {

LateRanks::LateRanks(int rank, std::chrono::milliseconds patience)
    : rank_(rank), pause_(std::max(patience, std::chrono::milliseconds(1))), due_(in(pause_)) {}

void LateRanks::look(const std::function<std::vector<int>()>& find_missing) {
  if (Clock::now() < due_) return;
  const std::vector<int> missing = find_missing();
  if (!missing.empty())
    log(LogLevel::warning, fmt::format("init_process_group on rank {} has waited for {:.1f} s: {} "
                                       "{} not come to {}",
                                       rank_, seconds_since(began_), name_of_ranks(missing),
                                       missing.size() == 1 ? "has" : "have", place_));
  pause_ *= 2;
  due_ = in(pause_);
}

std::vector<int> if_first_to_come(int rank, std::vector<int> missing) {
  const auto before = static_cast<std::size_t>(rank);
  const bool is_first =
      before == 0 || (missing.size() >= before && missing[before - 1] == rank - 1);
  return is_first ? std::move(missing) : std::vector<int>();
}

}  // namespace lockstep::comm
