// The step that Adam and AdamW share; only their kernels differ.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/optim/fused_step.h"

namespace lockstep::fused {

// Type of at::_fused_adam_ and at::_fused_adamw_. Arguments: parameters, gradients, exp_avgs,
// exp_avg_sqs, max_exp_avg_sqs and steps; lr, beta1, beta2, weight_decay and eps; amsgrad and
// maximize; grad_scale and found_inf.
using AdamKernel = void (*)(at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                            at::TensorList, at::TensorList, double, double, double, double, double,
                            bool, bool, const std::optional<at::Tensor>&,
                            const std::optional<at::Tensor>&);

struct AdamBatch : Batch {
  std::vector<at::Tensor> exp_avgs;
  std::vector<at::Tensor> exp_avg_sqs;
  std::vector<at::Tensor> max_exp_avg_sqs;  // Empty without amsgrad.
};

template <class ParamState>
std::unique_ptr<ParamState> first_adam_state(const at::Tensor& parameter, bool amsgrad) {
  const auto zeros = [&] { return at::zeros_like(parameter, at::MemoryFormat::Preserve); };
  auto state = std::make_unique<ParamState>();
  state->exp_avg(zeros());
  state->exp_avg_sq(zeros());
  if (amsgrad) state->max_exp_avg_sq(zeros());
  return state;
}

template <class Options>
void run(const AdamBatch& batch, const Options& options, AdamKernel kernel) {
  // All parameters share one step tensor, because the kernel only reads it.
  const at::Tensor step =
      at::scalar_tensor(batch.step, at::TensorOptions(batch.device).dtype(at::kFloat));
  const std::vector<at::Tensor> steps(batch.parameters.size(), step);
  const auto [beta1, beta2] = options.betas();
  kernel(batch.parameters, batch.gradients, batch.exp_avgs, batch.exp_avg_sqs,
         batch.max_exp_avg_sqs, steps, options.lr(), beta1, beta2, options.weight_decay(),
         options.eps(), options.amsgrad(), /*maximize=*/false, /*grad_scale=*/{}, /*found_inf=*/{});
  batch.note_written();
}

// Checks every group before the first one is stepped.
template <class Options, class ParamState>
void require_adam_states(const std::vector<Group>& groups, const States& states) {
  for (const Group& group : groups)
    for (const at::Tensor& parameter : group.params()) {
      const auto slot = states.find(parameter.unsafeGetTensorImpl());
      if (!parameter.grad().defined() || slot == states.end() || !slot->second) continue;
      const auto& state = static_cast<const ParamState&>(*slot->second);
      require_state(parameter, state.exp_avg());
      require_state(parameter, state.exp_avg_sq());
      if (static_cast<const Options&>(group.options()).amsgrad())
        require_state(parameter, state.max_exp_avg_sq());
    }
}

template <class Options, class ParamState>
void adam_step(const Group& group, States& states, AdamKernel kernel) {
  const auto& options = static_cast<const Options&>(group.options());
  const auto take = [](const at::Tensor& parameter, at::Tensor& tensor, auto& list) {
    lay_out_as(parameter, tensor);
    list.push_back(tensor);
  };
  std::vector<AdamBatch> batches;
  for (const at::Tensor& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    auto& slot = states[parameter.unsafeGetTensorImpl()];
    if (!slot) slot = first_adam_state<ParamState>(parameter, options.amsgrad());
    auto& state = static_cast<ParamState&>(*slot);
    state.step(state.step() + 1);

    AdamBatch& batch = add_to_batch(batches, parameter, state.step());
    take(parameter, state.exp_avg(), batch.exp_avgs);
    take(parameter, state.exp_avg_sq(), batch.exp_avg_sqs);
    if (options.amsgrad()) take(parameter, state.max_exp_avg_sq(), batch.max_exp_avg_sqs);
  }
  for (const AdamBatch& batch : batches) run(batch, options, kernel);
}

}  // namespace lockstep::fused
