// The learning rate for a global batch that is larger than the one for which the rate was tuned
// (docs/guide/learning-rates.md).
//
//   lockstep::ScaledLearningRate schedule(sgd, {.base_batch = 256, .global_batch = 1024});
//   schedule.step();  // After each sgd.step().
//
// The constructor multiplies the rates of all param groups by k = global_batch / base_batch. The
// rates then follow a LinearLR from 1 / k to 1, because the full rate diverges at first (Goyal et
// al. 2017, "Accurate, Large Minibatch SGD"). With Adam, use the square root of k (Malladi et al.
// 2022, "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms"). Schedules that are
// created later start at the scaled rates.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>

#include "lockstep/base/api.h"
#include "lockstep/optim/schedules/schedules.h"

namespace lockstep {

enum class RateRule : std::uint8_t {
  linear,  // k.
  sqrt,    // The square root of k.
  none,    // 1. Still detects a checkpoint of another global batch.
};

struct ScaledLearningRateOptions {
  std::int64_t base_batch = 0;    // Samples for which the optimizer's rate was tuned.
  std::int64_t global_batch = 0;  // Samples of one optimizer step, over all ranks.
  RateRule rule = RateRule::linear;
  std::int64_t warmup_steps = 0;  // Goyal et al. take 5 epochs. No warm-up if k is at most 1.
};

// Loading a checkpoint restores its rate and global batch. If that batch differs from the present
// one, each rank logs the factor by which the rule would change the rate.
//
// It multiplies the current rates: do not create it again for an optimizer with scaled rates.
// Errors: misuse for a global_batch, or a base_batch with a rule, of less than 1, and for negative
// warmup_steps. Also for an optimizer with other schedules, which would not be scaled.
class LOCKSTEP_API ScaledLearningRate : public LinearLR {
 public:
  ScaledLearningRate(torch::optim::Optimizer& optimizer, const ScaledLearningRateOptions& options);

  // The factor of the base rates: k, its square root or 1. After loading, that of the checkpoint.
  double factor() const { return factor_; }
  std::int64_t warmup_steps() const { return options_.warmup_steps; }

 private:
  void list(optim::ScheduleFields& fields) override;

  const ScaledLearningRateOptions options_;
  std::int64_t batch_of_rate_;
  double factor_;
};

}  // namespace lockstep
