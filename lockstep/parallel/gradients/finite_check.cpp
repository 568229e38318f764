// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/finite_check.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/all.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>

#include <cstddef>
#include <limits>

#include "lockstep/tensor/tensor_memory.h"

namespace lockstep::parallel {
namespace {

// Checked together, for vectorisation.
template <class T>
constexpr std::size_t lanes_of = 64 / sizeof(T);

// Whether visit(i) is finite for all i below `count`. A finite number times zero is zero; others
// become NaN, which remains in every sum.
template <class T, class Visit>
bool all_finite_in(std::size_t count, Visit visit) {
  T sums[lanes_of<T>] = {};
  const std::size_t whole = count - count % lanes_of<T>;
  for (std::size_t i = 0; i < whole; i += lanes_of<T>) {
#pragma GCC ivdep
    for (std::size_t lane = 0; lane < lanes_of<T>; ++lane) sums[lane] += visit(i + lane) * 0;
  }
  T sum = 0;
  for (std::size_t i = whole; i < count; ++i) sum += visit(i) * 0;
  for (const T lane : sums) sum += lane;
  return sum == 0;
}

template <class T>
bool copy_elements(const at::Tensor& to, const at::Tensor& from, double scale) {
  auto* const out = to.mutable_data_ptr<T>();
  const auto* const in = from.const_data_ptr<T>();
  const auto factor = static_cast<T>(scale);
  return all_finite_in<T>(static_cast<std::size_t>(from.numel()), [=](std::size_t i) {
    const T value = in[i];
    out[i] = value * factor;
    return value;
  });
}

template <class T>
bool add_elements(const at::Tensor& to, const at::Tensor& from) {
  auto* const out = to.mutable_data_ptr<T>();
  const auto* const in = from.const_data_ptr<T>();
  return all_finite_in<T>(static_cast<std::size_t>(from.numel()), [=](std::size_t i) {
    const T value = in[i];
    out[i] += value;
    return value;
  });
}

template <class T>
bool elements_are_finite(const at::Tensor& tensor) {
  const auto* const in = tensor.const_data_ptr<T>();
  return all_finite_in<T>(static_cast<std::size_t>(tensor.numel()),
                          [=](std::size_t i) { return in[i]; });
}

}  // namespace

bool scaled_copy(const at::Tensor& to, const at::Tensor& from, double scale) {
  if (!is_in_reals(from)) return scaled_copy(reals_of(to), reals_of(from), scale);
  if (has_strides(from, to.strides()) && to.is_non_overlapping_and_dense()) {
    if (from.scalar_type() == at::kFloat) return copy_elements<float>(to, from, scale);
    if (from.scalar_type() == at::kDouble) return copy_elements<double>(to, from, scale);
  }
  const bool finite = all_finite(from);
  at::Tensor out = to;
  at::mul_out(out, from, at::scalar_tensor(scale, at::kDouble));
  return finite;
}

bool checked_add(const at::Tensor& to, const at::Tensor& from) {
  if (!is_in_reals(from)) return checked_add(reals_of(to), reals_of(from));
  if (has_strides(from, to.strides()) && to.is_non_overlapping_and_dense()) {
    if (from.scalar_type() == at::kFloat) return add_elements<float>(to, from);
    if (from.scalar_type() == at::kDouble) return add_elements<double>(to, from);
  }
  to.add_(from);
  return all_finite(from);
}

bool all_finite(const at::Tensor& tensor) {
  if (!is_in_reals(tensor)) return all_finite(reals_of(tensor));
  if (tensor.is_non_overlapping_and_dense()) {
    if (tensor.scalar_type() == at::kFloat) return elements_are_finite<float>(tensor);
    if (tensor.scalar_type() == at::kDouble) return elements_are_finite<double>(tensor);
  }
  return at::isfinite(tensor).all().item<bool>();
}

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
  // The largest magnitude: non-finite if and only if an element is.
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

}  // namespace lockstep::parallel
