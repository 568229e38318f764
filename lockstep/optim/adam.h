// Adam in one pass over the parameters.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/adam.h>

#include "lockstep/base/api.h"

namespace lockstep {

// torch::optim::Adam, with the same options, state and archives, whose step() runs ATen's fused
// kernel: parameters and state are read and written once. Weights and state equal those of
// Python's torch.optim.Adam(fused=True), bit for bit. Where a gradient or state has other strides
// than its parameter, which Python's pairs with the wrong weights, this takes a copy of it.
//
// Errors: unsupported for sparse gradients, and for parameters that are not floating-point or are
// views with gaps in memory; misuse for a gradient of another shape, and for state of another
// shape or without what the options need. All are looked at before the first is stepped.
class LOCKSTEP_API Adam : public torch::optim::Adam {
 public:
  using torch::optim::Adam::Adam;

  torch::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace lockstep
