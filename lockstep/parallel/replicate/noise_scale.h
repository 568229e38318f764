// Estimates the largest useful batch size: the gradient noise scale (docs/guide/large-batches.md).
//
// Compares the squared norms of gradients before and after averaging, as McCandlish et al. 2018
// (appendix A.1).
//
// Blocking: never. Not collective, but all ranks construct one.
// Lifetime: `ddp` may be destroyed first. Thread safety: none.
// Errors: misuse for a batch_size that is not positive, a decay outside of [0, 1), and a second
// NoiseScale of `ddp`. unsupported with share_parameters, shard_gradients(),
// register_comm_hook(), join(), static_graph, GradientMean::over_samples, sparse gradients, experts
// and parameters of another DistributedDataParallel. backward() throws mismatch, on all ranks, if
// only some have one.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "lockstep/base/api.h"

namespace lockstep::parallel {

class GradientNoise;

}  // namespace lockstep::parallel

namespace lockstep {

class DistributedDataParallelBase;

struct NoiseScaleOptions {
  // Samples in one backward() of a rank, whose loss is their mean.
  double batch_size = 0;

  // Weight of old values in moving averages: about 1 / (1 - decay) averaged passes count.
  double decay = 0.99;
};

// Measures while it exists. Each backward() reads every gradient once more, or twice if averaged. A
// group of one rank needs several backward() calls per step, all but the last under no_sync().
//
// A pass is ignored if a gradient is not finite, or `.grad` contains older gradients: call
// zero_grad() after each averaged pass. A GradScaler may scale gradients.
class LOCKSTEP_API NoiseScale {
 public:
  NoiseScale(DistributedDataParallelBase& ddp, const NoiseScaleOptions& options);
  ~NoiseScale();
  NoiseScale(const NoiseScale&) = delete;
  NoiseScale& operator=(const NoiseScale&) = delete;

  // Samples of all ranks in a step at which noise and gradient are equal; the same on all ranks.
  // Empty before the first pass that counts, and while noise hides the gradient; 0 without measured
  // noise.
  // Errors: misuse if the last mean was of one backward() of a group's only rank.
  std::optional<double> batch_size() const;

 private:
  const std::shared_ptr<parallel::GradientNoise> noise_;
};

}  // namespace lockstep
