// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/optimizers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/job/step_times.h"
#include "lockstep/optim/fused_step.h"

namespace lockstep {
namespace {

using optim::KernelBatch;
using optim::ParamGroup;
using optim::ParamStates;
using torch::optim::AdamOptions;
using torch::optim::AdamParamState;
using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;
using torch::optim::SGDOptions;
using torch::optim::SGDParamState;

// --- Adam and AdamW: only the kernels differ -----------------------------------------------------

// at::_fused_adam_ or at::_fused_adamw_.
using AdamKernel = void (*)(at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                            at::TensorList, at::TensorList, double, double, double, double, double,
                            bool, bool, const std::optional<at::Tensor>&,
                            const std::optional<at::Tensor>&);

struct AdamBatch : KernelBatch {
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
  // The kernel only reads the step: parameters share one tensor.
  const at::Tensor step =
      at::scalar_tensor(batch.step, at::TensorOptions(batch.device).dtype(at::kFloat));
  const std::vector<at::Tensor> steps(batch.parameters.size(), step);
  const auto [beta1, beta2] = options.betas();
  kernel(batch.parameters, batch.gradients, batch.exp_avgs, batch.exp_avg_sqs,
         batch.max_exp_avg_sqs, steps, options.lr(), beta1, beta2, options.weight_decay(),
         options.eps(), options.amsgrad(), /*maximize=*/false, /*grad_scale=*/{}, /*found_inf=*/{});
  batch.note_written();
}

template <class Options, class ParamState>
void require_adam_states(const std::vector<ParamGroup>& groups, const ParamStates& states) {
  for (const ParamGroup& group : groups)
    for (const at::Tensor& parameter : group.params()) {
      const auto slot = states.find(parameter.unsafeGetTensorImpl());
      if (!parameter.grad().defined() || slot == states.end() || !slot->second) continue;
      const auto& state = static_cast<const ParamState&>(*slot->second);
      optim::require_state(parameter, state.exp_avg());
      optim::require_state(parameter, state.exp_avg_sq());
      if (static_cast<const Options&>(group.options()).amsgrad())
        optim::require_state(parameter, state.max_exp_avg_sq());
    }
}

template <class Options, class ParamState>
void adam_step(const ParamGroup& group, ParamStates& states, AdamKernel kernel) {
  const auto& options = static_cast<const Options&>(group.options());
  const auto take = [](const at::Tensor& parameter, at::Tensor& tensor, auto& list) {
    optim::lay_out_as(parameter, tensor);
    list.push_back(tensor);
  };
  std::vector<AdamBatch> batches;
  for (const at::Tensor& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    auto& slot = states[parameter.unsafeGetTensorImpl()];
    if (!slot) slot = first_adam_state<ParamState>(parameter, options.amsgrad());
    auto& state = static_cast<ParamState&>(*slot);
    state.step(state.step() + 1);

    AdamBatch& batch = optim::add_to_batch(batches, parameter, state.step());
    take(parameter, state.exp_avg(), batch.exp_avgs);
    take(parameter, state.exp_avg_sq(), batch.exp_avg_sqs);
    if (options.amsgrad()) take(parameter, state.max_exp_avg_sq(), batch.max_exp_avg_sqs);
  }
  for (const AdamBatch& batch : batches) run(batch, options, kernel);
}

// KernelBatch::step of a first step, which fills the momentum.
constexpr std::int64_t first_step = 0;
constexpr std::int64_t later_step = 1;

struct SgdBatch : KernelBatch {
  std::vector<at::Tensor> momentum_buffers;  // Empty without momentum.
};

void require_full_precision(const ParamGroup& group) {
  for (const at::Tensor& parameter : group.params())
    if (parameter.grad().defined() && at::isReducedFloatingType(parameter.scalar_type()))
      throw Error(Fault::unsupported, "SGD: a parameter is of half precision");
}

void require_momentum(const ParamGroup& group, const ParamStates& states) {
  if (static_cast<const SGDOptions&>(group.options()).momentum() == 0) return;
  for (const at::Tensor& parameter : group.params()) {
    const auto slot = states.find(parameter.unsafeGetTensorImpl());
    if (parameter.grad().defined() && slot != states.end() && slot->second)
      optim::require_state(parameter,
                           static_cast<const SGDParamState&>(*slot->second).momentum_buffer());
  }
}

void add_with_momentum(std::vector<SgdBatch>& batches, const at::Tensor& parameter,
                       ParamStates& states) {
  auto& slot = states[parameter.unsafeGetTensorImpl()];
  const bool first = !slot;
  if (first) {
    auto state = std::make_unique<SGDParamState>();
    state->momentum_buffer(at::empty_like(parameter, at::MemoryFormat::Preserve));
    slot = std::move(state);
  }
  at::Tensor& buffer = static_cast<SGDParamState&>(*slot).momentum_buffer();
  optim::lay_out_as(parameter, buffer);
  optim::add_to_batch(batches, parameter, first ? first_step : later_step)
      .momentum_buffers.push_back(buffer);
}

void sgd_step(const ParamGroup& group, ParamStates& states) {
  const auto& options = static_cast<const SGDOptions&>(group.options());
  std::vector<SgdBatch> batches;
  for (const at::Tensor& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    if (options.momentum() == 0)
      optim::add_to_batch(batches, parameter, later_step);
    else
      add_with_momentum(batches, parameter, states);
  }
  for (const SgdBatch& batch : batches) {
    at::_fused_sgd_(batch.parameters, batch.gradients, batch.momentum_buffers,
                    options.weight_decay(), options.momentum(), options.lr(), options.dampening(),
                    options.nesterov(), /*maximize=*/false, batch.step == first_step);
    batch.note_written();
  }
}

}  // namespace

torch::Tensor Adam::step(LossClosure closure) {
  torch::Tensor loss = optim::loss_of(closure);
  const InPhase phase(StepPhase::optimizer);
  const at::NoGradGuard no_grad;
  optim::drop_repeated(param_groups_);
  optim::require_fusible(param_groups_, "Adam");
  require_adam_states<AdamOptions, AdamParamState>(param_groups_, state_);
  for (const auto& group : param_groups_)
    adam_step<AdamOptions, AdamParamState>(group, state_, at::_fused_adam_);
  return loss;
}

torch::Tensor AdamW::step(LossClosure closure) {
  torch::Tensor loss = optim::loss_of(closure);
  const InPhase phase(StepPhase::optimizer);
  const at::NoGradGuard no_grad;
  optim::drop_repeated(param_groups_);
  optim::require_fusible(param_groups_, "AdamW");
  require_adam_states<AdamWOptions, AdamWParamState>(param_groups_, state_);
  for (const auto& group : param_groups_)
    adam_step<AdamWOptions, AdamWParamState>(group, state_, at::_fused_adamw_);
  return loss;
}

torch::Tensor SGD::step(LossClosure closure) {
  torch::Tensor loss = optim::loss_of(closure);
  const InPhase phase(StepPhase::optimizer);
  const at::NoGradGuard no_grad;
  optim::drop_repeated(param_groups_);
  optim::require_fusible(param_groups_, "SGD");
  for (const auto& group : param_groups_) {
    require_full_precision(group);
    require_momentum(group, state_);
  }
  for (const auto& group : param_groups_) sgd_step(group, state_);
  return loss;
}

}  // namespace lockstep
