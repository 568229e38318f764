// Adam in one pass over the parameters.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/adam.h>

#include "lockstep/comm/api.h"

namespace lockstep {

// torch::optim::Adam, with the same options, state and archives, whose step() runs ATen's fused
// kernel: parameters and state are read and written once. Weights and state equal those of
// Python's torch.optim.Adam(fused=True), bit for bit.
//
// Errors: unsupported for sparse gradients and for parameters that are not floating-point.
class LOCKSTEP_API Adam : public torch::optim::Adam {
 public:
  using torch::optim::Adam::Adam;

  torch::Tensor step(LossClosure closure = nullptr) override;

 private:
  void step(const torch::optim::OptimizerParamGroup& group);
};

}  // namespace lockstep
