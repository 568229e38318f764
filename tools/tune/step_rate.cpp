// SPDX-License-Identifier: Apache-2.0
#include "tools/tune/step_rate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace lockstep::tools {

void StepRate::observe(double seconds, std::uint64_t step) {
  if (step <= step_) return;
  step_ = step;
  if (!first_) first_ = seconds;
  if (step > first_steps && seconds >= *first_ + first_seconds) seen_.push_back({seconds, step});
}

double StepRate::measured_seconds() const {
  return seen_.empty() ? 0 : seen_.back().seconds - seen_.front().seconds;
}

std::uint64_t StepRate::measured_steps() const {
  return seen_.empty() ? 0 : seen_.back().step - seen_.front().step;
}

// Windows, about equally long, begin and end at observed changes.
std::vector<double> StepRate::window_rates() const {
  std::vector<double> rates;
  if (seen_.size() <= windows) return rates;
  const double length = measured_seconds() / windows;
  auto begin = seen_.begin();
  for (std::size_t i = 1; i <= windows; ++i) {
    const double end_time = seen_.front().seconds + static_cast<double>(i) * length;
    auto end = std::find_if(begin, seen_.end(),
                            [&](const Seen& each) { return each.seconds >= end_time; });
    if (end == seen_.end()) --end;  // Rounding.
    if (end <= begin) continue;
    rates.push_back(static_cast<double>(end->step - begin->step) / (end->seconds - begin->seconds));
    begin = end;
  }
  return rates;
}

std::optional<Rate> StepRate::rate() const {
  std::vector<double> rates = window_rates();
  if (rates.size() <= windows / 2) return std::nullopt;
  std::sort(rates.begin(), rates.end());
  return Rate{.median = rates[rates.size() / 2], .low = rates.front(), .high = rates.back()};
}

bool StepRate::is_reliable() const {
  constexpr double least_seconds = 2;
  constexpr std::uint64_t least_steps = 20;
  constexpr double error = 0.005;
  if (measured_seconds() < least_seconds || measured_steps() < least_steps) return false;
  const std::vector<double> rates = window_rates();
  if (rates.size() < windows) return false;
  const double count = static_cast<double>(rates.size());
  const double mean = std::accumulate(rates.begin(), rates.end(), 0.0) / count;
  double squares = 0;
  for (const double rate : rates) squares += (rate - mean) * (rate - mean);
  return std::sqrt(squares / (count - 1) / count) <= error * mean;
}

}  // namespace lockstep::tools
