// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/layerwise.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/job/step_times.h"
#include "lockstep/optim/fused_step.h"
#include "lockstep/optim/layerwise_kernels.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/tensor/cut_tensors.h"

namespace lockstep {
namespace {

using optim::ParamGroup;
using optim::ParamStates;
using torch::optim::OptimizerOptions;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

void require_state(const ParamStates& states, const at::Tensor& parameter) {
  const auto slot = states.find(parameter.unsafeGetTensorImpl());
  if (slot == states.end() || !slot->second) return;
  for (const auto& [name, tensor] : parts_of(*slot->second).tensors)
    optim::require_state(parameter, *tensor);
}

at::Tensor laid_out_gradient(const at::Tensor& parameter) {
  at::Tensor gradient = parameter.grad();
  optim::lay_out_as(parameter, gradient);
  return gradient;
}

bool are_positive(const SquareSums& sums) { return sums.weights > 0 && sums.update > 0; }

}  // namespace

LayerwiseOptimizer::LayerwiseOptimizer(const std::vector<ParamGroup>& groups,
                                       std::unique_ptr<OptimizerOptions> defaults)
    : Optimizer(groups, std::move(defaults)) {
  optim::take_options(groups, *defaults_, param_groups_);
}

// --- Steps ---------------------------------------------------------------------------------------

void LayerwiseOptimizer::require_steppable(const at::Tensor& parameter) const {
  if (!parameter.is_cpu() ||
      !(parameter.scalar_type() == at::kFloat || parameter.scalar_type() == at::kDouble))
    throw Error(Fault::unsupported,
                std::string(name()) + ": a parameter is not float or double in CPU memory");
  if (const std::string part = part_text(parameter); !part.empty())
    throw Error(Fault::unsupported, std::string(name()) + ": a parameter" + part +
                                        ", cut over ranks: its whole norm is not known");
}

torch::Tensor LayerwiseOptimizer::step(LossClosure closure) {
  torch::Tensor loss = optim::loss_of(closure);
  const InPhase phase(StepPhase::optimizer);
  const at::NoGradGuard no_grad;
  optim::drop_repeated(param_groups_);
  optim::require_fusible(param_groups_, name());
  for (const ParamGroup& group : param_groups_)
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      require_steppable(parameter);
      require_state(state_, parameter);
    }

  std::vector<SquareSums> sums;
  for (const ParamGroup& group : param_groups_)
    for (const at::Tensor& parameter : group.params())
      sums.push_back(parameter.grad().defined()
                         ? measure(parameter, laid_out_gradient(parameter), group.options())
                         : SquareSums{});
  if (add_parts_) add_parts_(sums);
  auto sum = sums.cbegin();
  for (const ParamGroup& group : param_groups_)
    for (const at::Tensor& parameter : group.params()) {
      const SquareSums& whole = *sum++;
      if (!parameter.grad().defined()) continue;
      apply(parameter, laid_out_gradient(parameter), group.options(), whole);
      parameter.unsafeGetTensorImpl()->bump_version();
    }
  return loss;
}

LARS::LARS(std::vector<at::Tensor> parameters, LARSOptions defaults)
    : LARS({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

LARS::LARS(const std::vector<ParamGroup>& groups, LARSOptions defaults)
    : LayerwiseOptimizer(groups, std::make_unique<LARSOptions>(std::move(defaults))) {
  for (const ParamGroup& group : param_groups_) {
    const auto& options = static_cast<const LARSOptions&>(group.options());
    require(options.lr() >= 0, "LARS: lr is negative or NaN");
    require(options.momentum() >= 0, "LARS: momentum is negative or NaN");
    require(options.weight_decay() >= 0, "LARS: weight_decay is negative or NaN");
    require(options.trust_coefficient() > 0, "LARS: trust_coefficient is not positive");
    require(options.eps() >= 0, "LARS: eps is negative or NaN");
    require(!options.nesterov() || options.momentum() > 0, "LARS: nesterov needs a momentum");
  }
}

SquareSums LARS::measure(const at::Tensor& parameter, const at::Tensor& gradient,
                         const OptimizerOptions& options) {
  if (!static_cast<const LARSOptions&>(options).adapt()) return {};
  return optim::square_sums(parameter, gradient);
}

void LARS::apply(const at::Tensor& parameter, const at::Tensor& gradient,
                 const OptimizerOptions& group_options, const SquareSums& sums) {
  const auto& options = static_cast<const LARSOptions&>(group_options);
  optim::LarsPass pass{.lr = options.lr(),
                       .momentum = options.momentum(),
                       .decay = options.weight_decay(),
                       .scale = 1,
                       .nesterov = options.nesterov()};
  if (options.adapt() && are_positive(sums)) {
    const double weights = std::sqrt(sums.weights);
    pass.scale = options.trust_coefficient() * weights /
                 (std::sqrt(sums.update) + options.weight_decay() * weights + options.eps());
    if (options.clip()) pass.scale = std::min(pass.scale / options.lr(), 1.0);
  } else if (options.adapt()) {
    pass.decay = 0;
  }
  at::Tensor buffer;
  if (options.momentum() != 0) {
    auto& slot = state_[parameter.unsafeGetTensorImpl()];
    if (!slot) {
      auto state = std::make_unique<LARSParamState>();
      state->momentum_buffer(at::zeros_like(parameter, at::MemoryFormat::Preserve));
      slot = std::move(state);
    }
    at::Tensor& kept = static_cast<LARSParamState&>(*slot).momentum_buffer();
    optim::lay_out_as(parameter, kept);
    buffer = kept;
  }
  pass.run(parameter, gradient, buffer);
}

namespace {

optim::LambUpdate update_of(const LAMBOptions& options, std::int64_t step) {
  const auto [beta1, beta2] = options.betas();
  const auto t = static_cast<double>(step);
  return {.m_scale = 1 / (1 - std::pow(beta1, t)),
          .v_scale = 1 / std::sqrt(1 - std::pow(beta2, t)),
          .eps = options.eps(),
          .decay = options.weight_decay()};
}

}  // namespace

LAMB::LAMB(std::vector<at::Tensor> parameters, LAMBOptions defaults)
    : LAMB({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

LAMB::LAMB(const std::vector<ParamGroup>& groups, LAMBOptions defaults)
    : LayerwiseOptimizer(groups, std::make_unique<LAMBOptions>(std::move(defaults))) {
  for (const ParamGroup& group : param_groups_) {
    const auto& options = static_cast<const LAMBOptions&>(group.options());
    const auto [beta1, beta2] = options.betas();
    require(options.lr() >= 0, "LAMB: lr is negative or NaN");
    require(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1,
            "LAMB: betas are not in the range from 0 to 1, without 1");
    require(options.eps() >= 0, "LAMB: eps is negative or NaN");
    require(options.weight_decay() >= 0, "LAMB: weight_decay is negative or NaN");
  }
}

SquareSums LAMB::measure(const at::Tensor& parameter, const at::Tensor& gradient,
                         const OptimizerOptions& group_options) {
  const auto& options = static_cast<const LAMBOptions&>(group_options);
  auto& slot = state_[parameter.unsafeGetTensorImpl()];
  if (!slot) {
    auto state = std::make_unique<LAMBParamState>();
    state->exp_avg(at::zeros_like(parameter, at::MemoryFormat::Preserve));
    state->exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
    slot = std::move(state);
  }
  auto& state = static_cast<LAMBParamState&>(*slot);
  optim::lay_out_as(parameter, state.exp_avg());
  optim::lay_out_as(parameter, state.exp_avg_sq());
  state.step(state.step() + 1);
  const auto [beta1, beta2] = options.betas();
  return update_of(options, state.step())
      .measure(parameter, gradient, state.exp_avg(), state.exp_avg_sq(), beta1, beta2);
}

void LAMB::apply(const at::Tensor& parameter, const at::Tensor& /*gradient*/,
                 const OptimizerOptions& group_options, const SquareSums& sums) {
  const auto& options = static_cast<const LAMBOptions&>(group_options);
  const auto& state = static_cast<const LAMBParamState&>(*state_[parameter.unsafeGetTensorImpl()]);
  const double ratio =
      options.adapt() && are_positive(sums) ? std::sqrt(sums.weights / sums.update) : 1;
  update_of(options, state.step())
      .run(parameter, state.exp_avg(), state.exp_avg_sq(), options.lr() * ratio);
}

// --- Archives ------------------------------------------------------------------------------------

void LARSOptions::serialize(OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(momentum);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(nesterov);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(trust_coefficient);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(clip);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(adapt);
}

void LARSOptions::serialize(InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, momentum);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, nesterov);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, trust_coefficient);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, clip);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, adapt);
}

void LARSParamState::serialize(OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(momentum_buffer);
}

void LARSParamState::serialize(InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(torch::Tensor, momentum_buffer);
}

void LARS::save(OutputArchive& archive) const {
  torch::optim::serialize<LARSParamState, LARSOptions>(archive, *this);
}

void LARS::load(InputArchive& archive) {
  torch::optim::serialize<LARSParamState, LARSOptions>(archive, *this);
}

void LAMBOptions::serialize(OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(betas);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(adapt);
}

void LAMBOptions::serialize(InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(betas_t, betas);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, adapt);
}

void LAMBParamState::serialize(OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(step);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(exp_avg);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(exp_avg_sq);
}

void LAMBParamState::serialize(InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(int64_t, step);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(torch::Tensor, exp_avg);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(torch::Tensor, exp_avg_sq);
}

void LAMB::save(OutputArchive& archive) const {
  torch::optim::serialize<LAMBParamState, LAMBOptions>(archive, *this);
}

void LAMB::load(InputArchive& archive) {
  torch::optim::serialize<LAMBParamState, LAMBOptions>(archive, *this);
}

}  // namespace lockstep
