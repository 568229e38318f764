// Adapts a tuned learning rate to a larger global batch (docs/guide/learning-rates.md).
//
//   lockstep::ScaledLearningRate schedule(sgd, {.base_batch = 256, .global_batch = 1024});
//   schedule.step();  // After each sgd.step().
//
// The constructor multiplies the rates of all param groups by k = global_batch / base_batch. With
// Adam, use the square root of k (Malladi et al. 2022, "On the SDEs and Scaling Rules for Adaptive
// Gradient Algorithms"). With warmup_steps, a LinearLR starts at the old rates, because the full
// rate diverges at first (Goyal et al. 2017, "Accurate, Large Minibatch SGD"). Later schedules
// start at the scaled rates.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>

#include "lockstep/base/api.h"
#include "lockstep/toolkit/schedules/schedules.h"

namespace lockstep {

enum class RateRule : std::uint8_t {
  linear,  // k.
  sqrt,    // sqrt(k).
  none,    // 1.
};

struct ScaledLearningRateOptions {
  std::int64_t base_batch = 0;    // Samples for which the rate was tuned.
  std::int64_t global_batch = 0;  // Samples per optimizer step, over all ranks.
  RateRule rule = RateRule::linear;
  std::int64_t warmup_steps = 0;  // Goyal et al. take 5 epochs. None if k is at most 1.
};

// Loading a checkpoint restores its rate and global batch. If that batch differs from the present
// one, each rank logs the factor that the rule would apply (the linear rule for RateRule::none).
//
// Errors: misuse for a global_batch, or a base_batch with a rule, of less than 1, and for negative
// warmup_steps. Misuse for an optimizer with other schedules, which would not be scaled. Another
// object, made after the destruction of the first, scales again.
class LOCKSTEP_API ScaledLearningRate : public LinearLR {
 public:
  ScaledLearningRate(torch::optim::Optimizer& optimizer, const ScaledLearningRateOptions& options);

  // After loading, that of the checkpoint.
  double factor() const { return factor_; }
  std::int64_t warmup_steps() const { return options_.warmup_steps; }

 private:
  void list(schedules::ScheduleFields& fields) override;

  const ScaledLearningRateOptions options_;
  std::int64_t batch_of_rate_;
  double factor_;
};

}  // namespace lockstep
