// Stochastic gradient descent in one pass over the parameters.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/sgd.h>

#include "lockstep/base/api.h"

namespace lockstep {

// torch::optim::SGD with the differences that Adam (adam.h) has from torch::optim::Adam. Supports
// momentum, dampening, Nesterov and weight decay. Weights and state equal those of Python's
// torch.optim.SGD(fused=True), bit for bit.
//
// Errors: as Adam's; also unsupported for parameters of half precision, because ATen's kernel
// updates only the last few of their weights (FusedSGDKernel.cpp, LibTorch 2.13).
class LOCKSTEP_API SGD : public torch::optim::SGD {
 public:
  using torch::optim::SGD::SGD;

  torch::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace lockstep
