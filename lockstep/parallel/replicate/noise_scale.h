// Measures how far the batch may grow: the gradient noise scale.
//
//   lockstep::NoiseScale noise(ddp, {.batch_size = 64});
//   ...                                                  // Training as usual.
//   if (const auto batch_size = noise.batch_size())
//     std::cout << "your batch may grow to about " << *batch_size << '\n';
//
// It compares the squared norms of gradients before and after they are averaged, as McCandlish et
// al. 2018 (appendix A.1) do. Well below batch_size(), twice the batch allows nearly twice the
// learning rate and half the steps; well above it, a larger batch gains little. The result is for
// the weights at hand and grows during training.
//
// A pass does not count if its gradients are not all finite, as with a GradScaler that looks for
// its scale, or if `.grad` contains older ones: call zero_grad() after each averaged pass. A
// GradScaler may scale the gradients: passes from before a change of the scale only weigh more or
// less.
//
// While it lives, each backward() reads every gradient once more, and twice if it is averaged. The
// ranks' norms travel with the report that they exchange in each pass anyway. Without one, nothing
// is measured.
//
// Gradients of one batch size say nothing: with one rank, accumulate gradients over several
// backward() calls under no_sync().
//
// Blocking: never. Not collective, but all ranks make one.
// Lifetime: `ddp` may end before. Thread safety: none; one training loop uses it.
// Errors: misuse for a batch_size that is not positive, a decay outside of [0, 1), and a second
// one of the same `ddp`; unsupported with share_parameters and FullyShardedDataParallel, whose
// gradients are averaged in parts, with deterministic, shard_gradients(), register_comm_hook(),
// join(), static_graph, GradientMean::over_samples, experts and parameters of another
// DistributedDataParallel. backward() throws mismatch, on all ranks, if only some have one.

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
  // Samples of one backward() of one rank, whose loss is their mean.
  double batch_size = 0;

  // Share of the old values in moving averages over averaged passes: about 1 / (1 - decay) passes
  // count. A single pass says almost nothing.
  double decay = 0.99;
};

class LOCKSTEP_API NoiseScale {
 public:
  NoiseScale(DataParallelBase& ddp, const NoiseScaleOptions& options);
  ~NoiseScale();
  NoiseScale(const NoiseScale&) = delete;
  NoiseScale& operator=(const NoiseScale&) = delete;

  // Samples of all ranks in one step at which the noise of the gradient equals the gradient; equal
  // on all ranks. Empty before the first pass that counts, and while noise hides the gradient; 0 if
  // no noise shows.
  // Errors: misuse if the last averaged gradient was of a single backward().
  std::optional<double> batch_size() const;

 private:
  const std::shared_ptr<parallel::GradientNoise> noise_;
};

}  // namespace lockstep
