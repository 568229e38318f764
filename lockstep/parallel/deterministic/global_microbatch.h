// A fixed microbatch of the global batch, which DistributedDataParallel::train_microbatches()
// passes to the program.
//
// Rank p mod R of R ranks computes microbatch p of k. The rank's batch must be its share of the
// global batch, as DistributedSampler deals it. Rank r has the samples r, r + R, r + 2R and so on.
// Microbatch p then has the samples p, p + k, p + 2k and so on, on every number of ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "lockstep/base/api.h"

namespace lockstep {

struct GlobalMicrobatch {
  int index;  // From 0, over all ranks.
  int count;
  int ranks;  // Microbatches are dealt to these ranks in order.

  // The microbatch's part of `rows`, this rank's samples along dim 0: `rows` itself or a copy. The
  // layout is equal on every number of ranks, because the bits of kernels may depend on it.
  // Errors: misuse if the rank's microbatches would have unequal numbers of rows.
  LOCKSTEP_API at::Tensor of(const at::Tensor& rows) const;
};

// A microbatch's loss: the mean over its samples or, with GradientMean::over_samples, the sum.
using MicrobatchLoss = std::function<at::Tensor(const GlobalMicrobatch& microbatch)>;

using Piece [[deprecated("renamed to GlobalMicrobatch")]] = GlobalMicrobatch;
using PieceLoss [[deprecated("renamed to MicrobatchLoss")]] = MicrobatchLoss;

}  // namespace lockstep
