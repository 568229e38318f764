// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/run_log/scalar_means.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

namespace lockstep::run_log {
namespace {

constexpr std::int64_t all_steps = std::numeric_limits<std::int64_t>::max();

}  // namespace

void ScalarMeans::add(const RankReport& report) {
  reported_[static_cast<std::size_t>(report.rank)] = report.is_last ? all_steps : report.step;
  for (const auto& [name, values] : report.scalars)
    for (const LoggedScalar& one : values) open_[one.step][name][report.rank] = one;
}

void ScalarMeans::end() { std::ranges::fill(reported_, all_steps); }

void ScalarMeans::end_all_but(int rank) {
  const std::int64_t own = reported_[static_cast<std::size_t>(rank)];
  end();
  reported_[static_cast<std::size_t>(rank)] = own;
}

std::int64_t ScalarMeans::complete_until() const { return std::ranges::min(reported_); }

std::vector<ScalarMean> ScalarMeans::take_complete() {
  std::vector<ScalarMean> means;
  const auto end = open_.lower_bound(complete_until());
  for (auto step = open_.begin(); step != end; ++step)
    for (const auto& [name, by_rank] : step->second) {
      ScalarMean mean{name, step->first, by_rank.begin()->second.time, 0};
      for (const auto& [rank, one] : by_rank) {
        mean.value += one.value;
        mean.time = std::min(mean.time, one.time);
      }
      mean.value /= static_cast<double>(by_rank.size());
      means.push_back(std::move(mean));
    }
  open_.erase(open_.begin(), end);
  return means;
}

}  // namespace lockstep::run_log
