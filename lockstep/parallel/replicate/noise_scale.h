// Estimates the largest useful batch size: the gradient noise scale.
//
//   lockstep::NoiseScale noise(ddp, {.batch_size = 64});
//   ...                                                  // Training as usual.
//   if (const auto batch_size = noise.batch_size())
//     std::cout << "your batch may grow to about " << *batch_size << '\n';
//
// Compares the squared norms of gradients before and after averaging, as McCandlish et al. 2018
// (appendix A.1). Well below batch_size(), twice the batch allows nearly twice the learning rate
// and half the steps. Well above it, a larger batch gains little. The result is for the current
// weights and grows during training.
//
// Blocking: never. Not collective, but all ranks construct one.
// Lifetime: `ddp` may be destroyed first. Thread safety: none; one training loop uses it.
// Errors: misuse for a batch_size that is not positive, a decay outside of [0, 1), and a second
// NoiseScale of the same `ddp`. unsupported with share_parameters, FullyShardedDataParallel (both
// average gradients in parts), deterministic, shard_gradients(), register_comm_hook(), join(),
// static_graph, GradientMean::over_samples, experts and parameters of another
// DistributedDataParallel. backward() throws mismatch, on all ranks, if only some ranks have one.

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

  // Weight of old values in moving averages over averaged passes: about 1 / (1 - decay) passes
  // count. A single pass gives almost no information.
  double decay = 0.99;
};

// Measures while it exists: each backward() reads every gradient once more, and twice if it is
// averaged. The ranks' norms are a part of the report that they exchange in each pass; without that
// report, nothing is measured.
//
// One rank needs several backward() calls under no_sync() for each step, because gradients of a
// single batch size do not suffice.
//
// A pass is ignored if its gradients are not all finite, for example while a GradScaler searches
// for its scale. It is also ignored if `.grad` contains older gradients: call zero_grad() after
// each averaged pass. A GradScaler may scale the gradients. When the scale changes, passes before
// the change only get another weight.
class LOCKSTEP_API NoiseScale {
 public:
  NoiseScale(DataParallelBase& ddp, const NoiseScaleOptions& options);
  ~NoiseScale();
  NoiseScale(const NoiseScale&) = delete;
  NoiseScale& operator=(const NoiseScale&) = delete;

  // The number of samples of all ranks in one step at which the gradient's noise equals the
  // gradient; equal on all ranks. Empty before the first pass that counts, and while noise hides
  // the gradient; 0 if no noise was measured.
  // Errors: misuse if the last averaged gradient was of a single backward().
  std::optional<double> batch_size() const;

 private:
  const std::shared_ptr<parallel::GradientNoise> noise_;
};

}  // namespace lockstep
