// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>

#include "lockstep/optim/adam_step.h"

namespace lockstep {

torch::Tensor AdamW::step(LossClosure closure) {
  torch::Tensor loss = fused::loss_of(closure);
  const at::NoGradGuard no_grad;
  fused::require_fusible(param_groups_, "AdamW");
  fused::require_adam_states<torch::optim::AdamWOptions, torch::optim::AdamWParamState>(
      param_groups_, state_);
  for (const auto& group : param_groups_)
    fused::adam_step<torch::optim::AdamWOptions, torch::optim::AdamWParamState>(group, state_,
                                                                                at::_fused_adamw_);
  return loss;
}

}  // namespace lockstep
