// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/replicate/noise_scale.h"

#include "lockstep/base/error.h"
#include "lockstep/parallel/gradients/gradient_noise.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"

namespace lockstep {
namespace {

std::shared_ptr<parallel::GradientNoise> made(const NoiseScaleOptions& options) {
  require(options.batch_size > 0,
          "NoiseScale: batch_size, the samples of one backward() of one rank, is not positive");
  require(options.decay >= 0 && options.decay < 1,
          "NoiseScale: the decay is not in the range from 0 to 1, without 1");
  return std::make_shared<parallel::GradientNoise>(options.batch_size, options.decay);
}

}  // namespace

NoiseScale::NoiseScale(DistributedDataParallelBase& ddp, const NoiseScaleOptions& options)
    : noise_(made(options)) {
  ddp.measure(noise_);
}

NoiseScale::~NoiseScale() = default;

std::optional<double> NoiseScale::batch_size() const {
  require(!noise_->is_of_one_pass(),
          "NoiseScale: with one rank and no accumulation of gradients, there is no second batch "
          "size to compare with: use several ranks, or accumulate gradients under no_sync()");
  return noise_->batch_size();
}

}  // namespace lockstep
