// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/clip_grad_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/native/ForeachUtils.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/job/step_times.h"
#include "lockstep/optim/gradient_elements.h"
#include "lockstep/optim/model_part.h"
#include "lockstep/tensor/cut_tensors.h"
#include "lockstep/tensor/distinct_tensors.h"
#include "lockstep/tensor/sharded_module.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep {
namespace {

std::vector<at::Tensor> gradients_of(at::TensorList parameters) {
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters.size());
  for (const at::Tensor& parameter : distinct(parameters.vec())) {
    require(!lies_in_shared_block(parameter),
            "clip_grad_norm_: gradients of shared parameters are their optimizer's: call its "
            "clip_grad_norm_()");
    if (auto elements = optim::gradient_elements(parameter))
      gradients.push_back(std::move(*elements));
  }
  return gradients;
}

using ByType = std::vector<std::vector<at::Tensor>>;

// In PyTorch's order, which determines the last bit of a total over several types.
ByType grouped(const std::vector<at::Tensor>& gradients) {
  const auto groups = at::native::_group_tensors_by_first_tensors_device_and_dtype(
      {{gradients.begin(), gradients.end()}}, /*with_indices=*/false);
  ByType result;
  for (const auto& [key, lists] : groups) {
    auto& group = result.emplace_back();
    group.reserve(lists.first.front().size());
    for (const auto& gradient : lists.first.front()) group.push_back(*gradient);
  }
  return result;
}

at::Tensor norm_of(const ByType& groups, at::Device device, double norm_type) {
  std::vector<at::Tensor> norms;
  for (const auto& group : groups)
    for (const at::Tensor& norm : at::_foreach_norm(group, norm_type))
      norms.push_back(norm.to(device));
  return at::linalg_vector_norm(at::stack(norms), norm_type);
}

void require_finite(const at::Tensor& total, at::TensorList parameters) {
  if (std::isfinite(total.item<double>())) return;
  std::size_t gradients = 0;
  std::vector<std::size_t> bad;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].grad().defined()) continue;
    ++gradients;
    const auto elements = optim::gradient_elements(parameters[i]);
    if (elements && !at::isfinite(*elements).all().item<bool>()) bad.push_back(i);
  }
  throw Error(Fault::corrupt,
              "clip_grad_norm_: the total norm is not finite; " + std::to_string(bad.size()) +
                  " of " + std::to_string(gradients) + " gradients are not" +
                  (bad.empty() ? "" : ", first that of parameter " + std::to_string(bad.front())));
}

// Rounds like Python's number / tensor; the C++ operator rounds once.
void scale(const ByType& groups, const at::Tensor& total, double max_norm) {
  const at::Tensor factor = at::clamp(total.add(1e-6).reciprocal().mul(max_norm), {}, 1.0);
  for (const auto& group : groups) at::_foreach_mul_(group, factor.to(group.front().device()));
}

// --- Parameters that are cut over ranks ----------------------------------------------------------

double joined(double one, double other, double norm_type) {
  return std::isinf(norm_type)
             ? std::max(one, other)
             : std::pow(std::pow(one, norm_type) + std::pow(other, norm_type), 1 / norm_type);
}

double norm_of(const std::vector<at::Tensor>& parameters, double norm_type) {
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  if (gradients.empty()) return 0;
  return norm_of(grouped(gradients), at::kCPU, norm_type).item<double>();
}

double norm_over(const ProcessGroup& group, double own, double norm_type) {
  std::vector<double> sum{std::isinf(norm_type) ? own : std::pow(own, norm_type)};
  group.all_reduce(buffer_of(sum), std::isinf(norm_type) ? ReduceOp::max : ReduceOp::sum,
                   {.label = "clip_grad_norm_"});
  return std::isinf(norm_type) ? sum[0] : std::pow(sum[0], 1 / norm_type);
}

double norm_of_all(const std::vector<CountedParameters>& counted, double norm_type) {
  double total = norm_of(counted.front().parameters, norm_type);
  for (std::size_t i = 1; i < counted.size(); ++i) {
    const double own = norm_of(counted[i].parameters, norm_type);
    total = joined(total, norm_over(*counted[i].group, own, norm_type), norm_type);
  }
  return total;
}

}  // namespace

at::Tensor clip_grad_norm_(at::TensorList parameters, double max_norm, double norm_type,
                           bool error_if_nonfinite) {
  require(max_norm >= 0, "clip_grad_norm_: max_norm is negative or NaN");
  const InPhase phase(StepPhase::optimizer);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    require(part_text(parameters[i]).empty(), [&] {
      return "clip_grad_norm_: parameter " + std::to_string(i) + part_text(parameters[i]) +
             ", cut over ranks, and a norm of parts is none of the whole: call "
             "clip_grad_norm_(module, ...)";
    });
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  if (gradients.empty()) return at::zeros({});
  const auto groups = grouped(gradients);
  at::Tensor total = norm_of(groups, gradients.front().device(), norm_type);
  if (error_if_nonfinite) require_finite(total, parameters);
  scale(groups, total, max_norm);
  return total;
}

at::Tensor clip_grad_norm_(torch::nn::Module& module, double max_norm, double norm_type,
                           bool error_if_nonfinite) {
  const InPhase phase(StepPhase::optimizer);
  const Layouts layouts = layouts_of(module);
  if (layouts.empty())
    return clip_grad_norm_(module.parameters(), max_norm, norm_type, error_if_nonfinite);
  return clip_parts({.parameters = named_parameters(module), .layouts = layouts}, max_norm,
                    norm_type, error_if_nonfinite);
}

std::vector<CountedParameters> counted_parameters(const ModelPart& model) {
  NamedTensors own = model.parameters;
  std::erase_if(own, [&](const auto& named) { return model.copies.contains(named.first); });
  std::vector<CountedParameters> counted(1);
  for (const auto& [name, parameter] : distinct(std::move(own))) {
    const auto layout = model.layouts.find(name);
    if (layout == model.layouts.end()) {
      counted.front().parameters.push_back(parameter);
      continue;
    }
    const ProcessGroup& group = layout->second.group;
    auto found = std::ranges::find_if(counted, [&](const CountedParameters& one) {
      return one.group && one.group->name() == group.name();
    });
    if (found == counted.end()) found = counted.insert(found, {.group = group});
    found->parameters.push_back(parameter);
  }
  return counted;
}

at::Tensor clip_parts(const ModelPart& model, double max_norm, double norm_type,
                      bool error_if_nonfinite) {
  require(max_norm >= 0, "clip_grad_norm_: max_norm is negative or NaN");
  require(norm_type > 0, "clip_grad_norm_: over parts of parameters, norm_type is positive");
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> all;
  for (const auto& [name, parameter] : model.parameters) all.push_back(parameter);
  double norm = norm_of_all(counted_parameters(model), norm_type);
  if (model.stages) norm = norm_over(*model.stages, norm, norm_type);
  const at::Tensor total = at::scalar_tensor(norm, all.front().options());
  if (error_if_nonfinite) require_finite(total, all);
  const std::vector<at::Tensor> gradients = gradients_of(all);
  if (!gradients.empty()) scale(grouped(gradients), total, max_norm);
  return total;
}

}  // namespace lockstep
