// Complex numbers as the pairs of reals that they are in memory, as PyTorch averages them.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/view_as_real.h>

namespace lockstep {

// Whether the memory of `tensor` holds its values: it is no lazy conjugate or negative.
inline bool holds_values(const at::Tensor& tensor) { return !tensor.is_conj() && !tensor.is_neg(); }

// Whether it holds them as reals.
inline bool is_in_reals(const at::Tensor& tensor) {
  return !tensor.is_complex() && holds_values(tensor);
}

// The values of `tensor` as reals: itself or, of a complex one, a view with a last dimension of 2.
// A copy where conjugates or negatives are not in memory yet.
inline at::Tensor reals_of(const at::Tensor& tensor) {
  const at::Tensor values = tensor.resolve_conj().resolve_neg();
  return values.is_complex() ? at::view_as_real(values) : values;
}

}  // namespace lockstep
