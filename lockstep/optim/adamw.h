// AdamW in one pass over the parameters.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/adamw.h>

#include "lockstep/base/api.h"

namespace lockstep {

// torch::optim::AdamW with the differences that Adam (adam.h) has from torch::optim::Adam. Weights
// and state equal those of Python's torch.optim.AdamW(fused=True), bit for bit.
//
// Errors: as Adam's.
class LOCKSTEP_API AdamW : public torch::optim::AdamW {
 public:
  using torch::optim::AdamW::AdamW;

  torch::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace lockstep
