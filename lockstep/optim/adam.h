// Adam in one pass over the parameters.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/adam.h>

#include "lockstep/base/api.h"

namespace lockstep {

// torch::optim::Adam with the same options, state and archives. Its step() runs ATen's fused
// kernel, which reads and writes parameters and state once. Weights and state equal those of
// Python's torch.optim.Adam(fused=True), bit for bit. A gradient or state with other strides than
// its parameter is copied first; Python pairs it with the wrong weights.
//
// Errors: unsupported for sparse gradients, and for parameters that are not floating-point or are
// views with gaps in memory; misuse for a gradient of another shape, and for state of another shape
// or without the tensors that the options need. All are checked before the first parameter is
// stepped.
class LOCKSTEP_API Adam : public torch::optim::Adam {
 public:
  using torch::optim::Adam::Adam;

  torch::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace lockstep
