// Tensor elements in the form that files and digests need: on the CPU, contiguous, row by row, with
// no pending operation.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

// Whether the memory of `tensor` already has this form. LibTorch conjugates and negates lazily: the
// memory of such a tensor holds other values than the tensor.
inline bool has_plain_values(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// Returns `tensor` itself if has_plain_values(), otherwise a copy in this form.
inline at::Tensor plain_values(const at::Tensor& tensor) {
  return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
}

}  // namespace lockstep
