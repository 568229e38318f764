// Estimates steps per second from observations of a program's step counter.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::tools {

// Steps per second: the median of several windows of the observed time, the lowest and the highest.
struct Rate {
  double median = 0;
  double low = 0;
  double high = 0;
};

// Ignores the first steps: they allocate memory and choose kernels. Thread safety: none.
class StepRate {
 public:
  // The counter was `step` at `seconds`, any clock. Call it often: a change is dated by its first
  // observation.
  void observe(double seconds, std::uint64_t step);

  std::uint64_t steps() const { return step_; }

  // Seconds since the first steps, and steps in that time.
  double measured_seconds() const;
  std::uint64_t measured_steps() const;

  // Empty unless steps end in most windows, so that one pause does not decide the rate.
  std::optional<Rate> rate() const;

  // Whether the rate's standard error is 0.5 %, from at least two seconds and 20 steps.
  bool is_reliable() const;

 private:
  static constexpr std::size_t windows = 5;
  static constexpr std::uint64_t first_steps = 3;
  static constexpr double first_seconds = 1;  // From the first step on.

  struct Seen {
    double seconds;
    std::uint64_t step;
  };

  std::vector<double> window_rates() const;

  std::uint64_t step_ = 0;
  std::optional<double> first_;  // When the first step ended.
  std::vector<Seen> seen_;
};

}  // namespace lockstep::tools
