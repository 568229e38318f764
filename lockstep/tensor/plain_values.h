// The elements of a tensor as files and digests have them: on the CPU, in one block, row by row,
// with nothing left to be done to them by readers.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

// Whether the memory of `tensor` is just that. LibTorch conjugates and negates lazily: the memory
// of such a tensor holds other values than the tensor.
inline bool has_plain_values(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// `tensor` itself where it has them, else a copy that does.
inline at::Tensor plain_values(const at::Tensor& tensor) {
  return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
}

}  // namespace lockstep
