// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/clip_grad_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/native/ForeachUtils.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep {
namespace {

std::vector<at::Tensor> gradients_of(at::TensorList parameters) {
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters.size());
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    require(!lies_in_shared_block(parameter),
            "clip_grad_norm_: the gradients of shared parameters are averaged only in step(): use "
            "SharedOptimizer::clip_grad_norm_()");
    if (gradient.layout() != at::kStrided)
      throw Error(Fault::unsupported, "clip_grad_norm_: a gradient is sparse");
    gradients.push_back(gradient);
  }
  return gradients;
}

// Groups by device and type in the order of PyTorch's own grouping. The last bit of a total over
// several types depends on that order.
std::vector<std::vector<at::Tensor>> grouped(const std::vector<at::Tensor>& gradients) {
  const auto groups = at::native::_group_tensors_by_first_tensors_device_and_dtype(
      {{gradients.begin(), gradients.end()}}, /*with_indices=*/false);
  std::vector<std::vector<at::Tensor>> result;
  for (const auto& [key, lists] : groups) {
    auto& group = result.emplace_back();
    group.reserve(lists.first.front().size());
    for (const auto& gradient : lists.first.front()) group.push_back(*gradient);
  }
  return result;
}

at::Tensor norm_of(const std::vector<std::vector<at::Tensor>>& groups, at::Device device,
                   double norm_type) {
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
    const at::Tensor& gradient = parameters[i].grad();
    if (!gradient.defined()) continue;
    ++gradients;
    if (!at::isfinite(gradient).all().item<bool>()) bad.push_back(i);
  }
  throw Error(Fault::corrupt,
              "clip_grad_norm_: the total norm is not finite; " + std::to_string(bad.size()) +
                  " of " + std::to_string(gradients) + " gradients are not" +
                  (bad.empty() ? "" : ", first that of parameter " + std::to_string(bad.front())));
}

}  // namespace

at::Tensor clip_grad_norm_(at::TensorList parameters, double max_norm, double norm_type,
                           bool error_if_nonfinite) {
  require(max_norm >= 0, "clip_grad_norm_: max_norm is negative or NaN");
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  if (gradients.empty()) return at::zeros({});
  const auto groups = grouped(gradients);
  at::Tensor total = norm_of(groups, gradients.front().device(), norm_type);
  if (error_if_nonfinite) require_finite(total, parameters);

  // Python computes number / tensor in these steps; C++'s operator rounds only once.
  const at::Tensor factor = at::clamp(total.add(1e-6).reciprocal().mul(max_norm), {}, 1.0);
  for (const auto& group : groups) at::_foreach_mul_(group, factor.to(group.front().device()));
  return total;
}

}  // namespace lockstep
