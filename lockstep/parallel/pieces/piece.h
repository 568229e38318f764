// A fixed part of the global batch, whoever computes it: what
// DistributedDataParallel::train_pieces() hands out.
//
// Piece p of k is computed by rank p mod R of R ranks, whose batch must be its share of the global
// batch as DistributedSampler deals it: rank r has the samples r, r + R, r + 2R and so on. Piece p
// then is the samples p, p + k, p + 2k and so on of the global batch, on every number of ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "lockstep/base/api.h"

namespace lockstep {

struct Piece {
  int index;  // From 0 on, among those of all ranks.
  int count;
  int ranks;  // Which the pieces are dealt to, in turn.

  // Its rows of `rows`, along dim 0, of which each is one of this rank's samples. In memory of its
  // own or `rows` itself, laid out alike on every number of ranks: kernels' bits may depend on
  // that.
  // Errors: misuse when the rank's pieces would not have equally many rows.
  LOCKSTEP_API at::Tensor of(const at::Tensor& rows) const;
};

// The loss of a piece: the mean over its samples or, with GradientMean::over_samples, the sum.
using PieceLoss = std::function<at::Tensor(const Piece& piece)>;

}  // namespace lockstep
