// Estimates the largest useful batch size: the gradient noise scale. docs/guide/large-batches.md
// has an example.
//
// Compares the squared norms of gradients before and after averaging, as McCandlish et al. 2018
// (appendix A.1). Well below batch_size(), twice the batch allows nearly twice the learning rate
// and half the steps. Well above it, a larger batch gains little. The result grows during training.
//
// Blocking: never. Not collective, but all ranks construct one.
// Lifetime: `ddp` may be destroyed first. Thread safety: none; one training loop uses it.
// Errors: misuse for a batch_size that is not positive, a decay outside of [0, 1), and a second
// NoiseScale of `ddp`. unsupported with share_parameters, FullyShardedDataParallel, deterministic,
// shard_gradients(), register_comm_hook(), join(), static_graph, GradientMean::over_samples,
// experts and parameters of another DistributedDataParallel. backward() throws mismatch, on all
// ranks, if only some have one.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "lockstep/base/api.h"

namespace lockstep::parallel {

class GradientNoise;

}  // namespace lockstep::parallel

namespace lockstep {

class DataParallelBase;

struct NoiseScaleOptions {
  // Samples in one backward() of one rank, whose loss is their mean.
  double batch_size = 0;

  // Weight of old values in moving averages: about 1 / (1 - decay) averaged passes count.
  double decay = 0.99;
};

// Measures while it exists. Each backward() reads every gradient once more, and twice if it is
// averaged. One rank needs several backward() calls under no_sync() for each step, because
// gradients of a single batch size do not suffice.
//
// A pass is ignored if a gradient is not finite, or if `.grad` contains older gradients: call
// zero_grad() after each averaged pass. A GradScaler may scale the gradients.
class LOCKSTEP_API NoiseScale {
 public:
  NoiseScale(DataParallelBase& ddp, const NoiseScaleOptions& options);
  ~NoiseScale();
  NoiseScale(const NoiseScale&) = delete;
  NoiseScale& operator=(const NoiseScale&) = delete;

  // The number of samples of all ranks in one step at which the gradient's noise equals the
  // gradient; the same on all ranks. Empty before the first pass that counts, and while noise hides
  // the gradient; 0 if no noise was measured.
  // Errors: misuse if the last averaged gradient was of a single backward().
  std::optional<double> batch_size() const;

 private:
  const std::shared_ptr<parallel::GradientNoise> noise_;
};

}  // namespace lockstep
