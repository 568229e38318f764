// The schedules of Python's torch.optim.lr_scheduler that raise and lower the rate, and move the
// momentum in the opposite direction. Options have Python's names and defaults.
//
// Errors: misuse for a missing option, for one that Python refuses, and if Python would divide by
// zero, as with step_size_up = 0. Misuse for cycle_momentum, including a loaded one, with an
// optimizer whose options have neither `momentum` nor `betas`.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/toolkit/schedules/lr_scheduler.h"
#include "lockstep/toolkit/schedules/per_group.h"
#include "lockstep/toolkit/schedules/schedules.h"

namespace lockstep {

// Option `momentum` of each param group, or the first of `betas`.
struct MomentumRange {
  std::vector<double> base = {};  // At the highest rate.
  std::vector<double> max = {};   // At the lowest rate.
};

enum class CyclicMode : std::uint8_t { triangular, triangular2, exp_range };
enum class CyclicScale : std::uint8_t { cycle, iterations };

struct CyclicLROptions {
  PerGroup base_lr;
  PerGroup max_lr;
  std::int64_t step_size_up = 2000;                 // At least 1.
  std::optional<std::int64_t> step_size_down = {};  // Default: step_size_up.
  CyclicMode mode = CyclicMode::triangular;
  double gamma = 1.0;                           // For exp_range.
  std::function<double(double)> scale_fn = {};  // Replaces `mode`. Not saved.
  CyclicScale scale_mode = CyclicScale::cycle;  // The argument of scale_fn.
  bool cycle_momentum = true;                   // Between max_momentum and base_momentum.
  PerGroup base_momentum = 0.8;
  PerGroup max_momentum = 0.9;
};

class LOCKSTEP_API CyclicLR : public LRScheduler {
 public:
  CyclicLR(torch::optim::Optimizer& optimizer, const CyclicLROptions& options);

 private:
  std::vector<double> rates() override;
  void list(schedules::ScheduleFields& fields) override;
  double height(double cycle) const;

  std::vector<double> max_lrs_;
  double total_size_;
  double step_ratio_;
  CyclicMode mode_;
  double gamma_;
  const std::function<double(double)> scale_fn_;
  CyclicScale scale_mode_;
  bool cycle_momentum_;
  MomentumRange momentum_;
};

struct OneCycleLROptions {
  PerGroup max_lr;
  std::int64_t total_steps = 0;  // Or set both of the next two.
  std::int64_t epochs = 0;
  std::int64_t steps_per_epoch = 0;
  double pct_start = 0.3;  // Share of the steps in which the rate rises.
  AnnealStrategy anneal_strategy = AnnealStrategy::cos;
  bool cycle_momentum = true;  // Between max_momentum and base_momentum.
  PerGroup base_momentum = 0.85;
  PerGroup max_momentum = 0.95;
  double div_factor = 25.0;       // max_lr over the initial rate.
  double final_div_factor = 1e4;  // The initial rate over the last one.
  bool three_phase = false;       // Falls to the initial rate, then to the last one.
};

// Raises the rate to max_lr and lowers it again, once. Later schedules start at its initial rate,
// max_lr / div_factor.
// Errors: also misuse in a step beyond total_steps.
class LOCKSTEP_API OneCycleLR : public LRScheduler {
 public:
  OneCycleLR(torch::optim::Optimizer& optimizer, const OneCycleLROptions& options);

 private:
  std::vector<double> rates() override;
  void list(schedules::ScheduleFields& fields) override;
  double annealed(double from, double to, double share) const;

  std::int64_t total_steps_;
  std::vector<double> end_steps_;  // The last step of each phase.
  AnnealStrategy anneal_strategy_;
  bool cycle_momentum_;
  std::array<std::vector<double>, 3> corners_;  // Initial, highest and last rates.
  MomentumRange momentum_;
};

}  // namespace lockstep
