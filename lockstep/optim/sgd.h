// Stochastic gradient descent in one pass over the parameters.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/sgd.h>

#include "lockstep/base/api.h"

namespace lockstep {

// torch::optim::SGD as Adam (adam.h) is torch::optim::Adam: momentum, dampening, Nesterov and
// weight decay. Weights and state equal those of Python's torch.optim.SGD(fused=True), bit for bit.
//
// Errors: as Adam's; also unsupported for parameters of half precision, whose weights ATen's kernel
// leaves as they are but for the last few (FusedSGDKernel.cpp, LibTorch 2.13).
class LOCKSTEP_API SGD : public torch::optim::SGD {
 public:
  using torch::optim::SGD::SGD;

  torch::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace lockstep
