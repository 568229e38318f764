// Arithmetic on gradients that also detects infinities and NaNs.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/view_as_real.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

namespace lockstep::parallel {

// Whether the memory holds the values: `tensor` is not a lazy conjugate or negative.
inline bool holds_values(const at::Tensor& tensor) { return !tensor.is_conj() && !tensor.is_neg(); }

inline bool is_in_reals(const at::Tensor& tensor) {
  return !tensor.is_complex() && holds_values(tensor);
}

// `tensor` or, if complex, a view with a last dimension of 2. A copy if a conjugation or negation
// is pending.
inline at::Tensor reals_of(const at::Tensor& tensor) {
  const at::Tensor values = tensor.resolve_conj().resolve_neg();
  return values.is_complex() ? at::view_as_real(values) : values;
}

// --- In CPU memory ------------------------------------------------------------------------------

// Sets `to` to `from` times `scale`, rounded as by at::mul(). Returns whether `from` is finite.
// Both are strided, of the same shape and type, and may be one tensor. Requires: holds_values(to).
bool scaled_copy(const at::Tensor& to, const at::Tensor& from, double scale);

// Adds `from` to `to`; otherwise as above.
bool checked_add(const at::Tensor& to, const at::Tensor& from);

bool all_finite(const at::Tensor& tensor);

// --- In a device's memory -----------------------------------------------------------------------

// Waits for the device only in first_non_finite(). Thread safety: none.
class FiniteCheck {
 public:
  // Enqueues a check of gradient_of(i) for each index on the current stream. Undefined and empty
  // gradients are finite.
  void enqueue(const std::vector<std::size_t>& indices,
               const std::function<at::Tensor(std::size_t)>& gradient_of);

  // The first enqueued non-finite index; drops all checks. Blocking. The current stream must follow
  // those of enqueue().
  std::optional<std::size_t> first_non_finite();

  void clear();

 private:
  std::vector<std::size_t> indices_;
  std::vector<at::Tensor> finite_;  // Per enqueue(), in the order of `indices_`.
};

}  // namespace lockstep::parallel
