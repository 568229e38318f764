// A microbatch of the global batch, from DistributedDataParallel::train_microbatches().
//
// Rank p mod R of R ranks computes microbatch p of k. Rank r must have the samples r, r + R, r + 2R
// and so on, as from DistributedSampler. Microbatch p then has the samples p, p + k, p + 2k and so
// on, on every number of ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "lockstep/base/api.h"

namespace lockstep {

struct GlobalMicrobatch {
  int index;  // From 0, over all ranks.
  int count;
  int ranks;

  // This microbatch's part of `rows`, the rank's samples along dim 0: `rows` itself or a copy. The
  // layout, on which kernels' bits may depend, is equal on every number of ranks.
  // Errors: misuse if the rank's microbatches would have unequal numbers of rows.
  LOCKSTEP_API at::Tensor of(const at::Tensor& rows) const;
};

// A microbatch's loss: the mean over its samples or, with GradientMean::over_samples, the sum.
using MicrobatchLoss = std::function<at::Tensor(const GlobalMicrobatch& microbatch)>;

using Piece [[deprecated("renamed to GlobalMicrobatch")]] = GlobalMicrobatch;
using PieceLoss [[deprecated("renamed to MicrobatchLoss")]] = MicrobatchLoss;

}  // namespace lockstep
