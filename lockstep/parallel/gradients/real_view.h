// Views of complex numbers as pairs of reals, the form in memory and in PyTorch's averages.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/view_as_real.h>

namespace lockstep {

// Whether the memory of `tensor` holds its values: it is not a lazy conjugate or negative.
inline bool holds_values(const at::Tensor& tensor) { return !tensor.is_conj() && !tensor.is_neg(); }

// Whether the memory holds the values as reals.
inline bool is_in_reals(const at::Tensor& tensor) {
  return !tensor.is_complex() && holds_values(tensor);
}

// The values of `tensor` as reals: `tensor` itself or, for complex types, a view with a last
// dimension of 2. A copy if a conjugation or negation is pending.
inline at::Tensor reals_of(const at::Tensor& tensor) {
  const at::Tensor values = tensor.resolve_conj().resolve_neg();
  return values.is_complex() ? at::view_as_real(values) : values;
}

}  // namespace lockstep
