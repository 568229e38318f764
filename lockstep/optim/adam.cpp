// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/adam.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>

#include <map>
#include <tuple>
#include <vector>

#include "lockstep/comm/error.h"

namespace lockstep {
namespace {

// What one call of the kernel works on: tensors of one type and device that are at one step.
struct Batch {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> exp_avgs;
  std::vector<at::Tensor> exp_avg_sqs;
  std::vector<at::Tensor> max_exp_avg_sqs;
};

using BatchKey = std::tuple<at::ScalarType, at::Device, std::int64_t>;

struct BeforeKey {
  static auto order(const BatchKey& key) {
    const auto& [dtype, device, step] = key;
    return std::tuple(dtype, device.type(), device.index(), step);
  }
  bool operator()(const BatchKey& a, const BatchKey& b) const { return order(a) < order(b); }
};

void require_fusible(const at::Tensor& parameter) {
  if (parameter.grad().layout() != at::kStrided)
    throw Error(Fault::unsupported, "Adam: a gradient is sparse");
  if (!at::isFloatingType(parameter.scalar_type()))
    throw Error(Fault::unsupported, "Adam: a parameter is not of a floating-point type");
}

using State = torch::optim::AdamParamState;

std::unique_ptr<State> first_state(const at::Tensor& parameter, bool amsgrad) {
  auto state = std::make_unique<State>();
  state->exp_avg(at::zeros_like(parameter, at::MemoryFormat::Preserve));
  state->exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
  if (amsgrad) state->max_exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
  return state;
}

void run(const Batch& batch, const torch::optim::AdamOptions& options, std::int64_t step) {
  // One tensor serves as the step of all: the kernel only reads it.
  const at::Tensor step_tensor =
      at::scalar_tensor(step, batch.parameters.front().options().dtype(at::kFloat));
  const std::vector<at::Tensor> steps(batch.parameters.size(), step_tensor);
  const auto [beta1, beta2] = options.betas();
  at::_fused_adam_(batch.parameters, batch.gradients, batch.exp_avgs, batch.exp_avg_sqs,
                   batch.max_exp_avg_sqs, steps, options.lr(), beta1, beta2, options.weight_decay(),
                   options.eps(), options.amsgrad(), /*maximize=*/false);
}

}  // namespace

torch::Tensor Adam::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  for (const auto& group : param_groups_) step(group);
  return loss;
}

void Adam::step(const torch::optim::OptimizerParamGroup& group) {
  const auto& options = static_cast<const torch::optim::AdamOptions&>(group.options());
  std::map<BatchKey, Batch, BeforeKey> batches;
  for (const at::Tensor& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    require_fusible(parameter);
    auto& slot = state_[parameter.unsafeGetTensorImpl()];
    if (!slot) slot = first_state(parameter, options.amsgrad());
    auto& state = static_cast<State&>(*slot);
    state.step(state.step() + 1);

    Batch& batch = batches[{parameter.scalar_type(), parameter.device(), state.step()}];
    batch.parameters.push_back(parameter);
    batch.gradients.push_back(parameter.grad());
    batch.exp_avgs.push_back(state.exp_avg());
    batch.exp_avg_sqs.push_back(state.exp_avg_sq());
    if (options.amsgrad()) batch.max_exp_avg_sqs.push_back(state.max_exp_avg_sq());
  }
  for (const auto& [key, batch] : batches) run(batch, options, std::get<2>(key));
}

}  // namespace lockstep
