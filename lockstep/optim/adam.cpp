// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/adam.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adam.h>

#include "lockstep/optim/adam_step.h"

namespace lockstep {

torch::Tensor Adam::step(LossClosure closure) {
  torch::Tensor loss = fused::loss_of(closure);
  const at::NoGradGuard no_grad;
  fused::require_fusible(param_groups_, "Adam");
  fused::require_adam_states<torch::optim::AdamOptions, torch::optim::AdamParamState>(param_groups_,
                                                                                      state_);
  for (const auto& group : param_groups_)
    fused::adam_step<torch::optim::AdamOptions, torch::optim::AdamParamState>(group, state_,
                                                                              at::_fused_adam_);
  return loss;
}

}  // namespace lockstep
