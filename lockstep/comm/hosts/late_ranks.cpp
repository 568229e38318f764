// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/late_ranks.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/job/fd_broker.h"

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

void LateRanks::look_for_all(int size, const std::function<bool(int rank)>& has_come) {
  look([&] {
    std::vector<int> missing;
    for (int rank = 0; rank < size; ++rank) {
      const bool is_here = has_come(rank);
      if (is_here && rank < rank_) return std::vector<int>();  // That rank warns.
      if (!is_here) missing.push_back(rank);
    }
    return missing;
  });
}

void LateRanks::look_for_rank_0(const std::string& job) {
  look([&] {
    try {
      if (!speaker_) speaker_ = take_abstract_name("waits for rank 0 of " + job);
    } catch (const Error&) {  // Such as too many open files; a superfluous warning is harmless.
      return std::vector<int>{0};
    }
    return speaker_ ? std::vector<int>{0} : std::vector<int>();
  });
}

}  // namespace lockstep::comm
