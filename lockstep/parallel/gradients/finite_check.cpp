// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/finite_check.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>

#include <limits>

#include "lockstep/parallel/gradients/real_view.h"

namespace lockstep {

void FiniteCheck::enqueue(const std::vector<std::size_t>& indices,
                          const std::function<at::Tensor(std::size_t)>& gradient_of) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const std::size_t i : indices) {
    const at::Tensor gradient = gradient_of(i);
    if (!gradient.defined() || gradient.numel() == 0) continue;
    gradients.push_back(reals_of(gradient));
    indices_.push_back(i);
  }
  if (gradients.empty()) return;
  // The largest magnitude. It is infinite or NaN exactly if one element is.
  const auto largest = at::_foreach_norm(gradients, std::numeric_limits<double>::infinity());
  finite_.push_back(at::isfinite(at::stack(largest)));
}

std::optional<std::size_t> FiniteCheck::first_non_finite() {
  if (finite_.empty()) return {};
  const at::Tensor finite = at::cat(finite_).cpu();
  const bool* const each = finite.const_data_ptr<bool>();
  std::optional<std::size_t> first;
  for (std::size_t i = 0; i < indices_.size() && !first; ++i)
    if (!each[i]) first = indices_[i];
  clear();
  return first;
}

void FiniteCheck::clear() {
  indices_.clear();
  finite_.clear();
}

}  // namespace lockstep
