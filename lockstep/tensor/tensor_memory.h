// Memory of tensors: strides, plain values, tensors on meta, and blocks that ranks share.
//
// Thread safety: full.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

// Ignores dimensions of size 1, whose strides have no effect.
inline bool has_strides(const at::Tensor& tensor, at::IntArrayRef strides) {
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
    if (tensor.size(dim) != 1 && tensor.stride(dim) != strides[static_cast<std::size_t>(dim)])
      return false;
  return true;
}

// The strides of `tensor` if its memory is dense, as with channels_last; otherwise those of a
// contiguous tensor of its shape.
inline std::vector<std::int64_t> dense_strides(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor.strides().vec();
  std::vector<std::int64_t> strides(static_cast<std::size_t>(tensor.dim()), 1);
  for (std::size_t dim = strides.size(); dim > 1; --dim)
    strides[dim - 2] = strides[dim - 1] * tensor.size(static_cast<std::int64_t>(dim) - 1);
  return strides;
}

// For files and digests: on the CPU, contiguous, without lazy conjugation and negation.
inline bool has_plain_values(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// `tensor` if has_plain_values(), otherwise a copy; detached.
inline at::Tensor plain_values(const at::Tensor& tensor) {
  return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
}

// XXH3-64 of plain_values().
std::uint64_t digest_of(const at::Tensor& tensor);

// --- Tensors on the meta device ------------------------------------------------------------------

// Errors: misuse, naming the tensor, if one is on meta (on_meta.h). `call` names the caller.
LOCKSTEP_API void require_values(const NamedTensors& tensors, std::string_view call);

// Gives a meta tensor and all its handles the memory of `memory`, of equal type and shape. Keeps
// autograd data. set_data() would reject the change of device.
void move_from_meta(const at::Tensor& tensor, const at::Tensor& memory);

// --- Memory that all ranks of the host share -----------------------------------------------------
// Code that writes to tensors independently on each rank can reject tensors in it.

// Records `memory` as shared until the last copy of the returned handle is released.
RegisteredMemory shared_block(RegisteredMemory memory);

// Whether the elements are in memory that shared_block() has recorded.
LOCKSTEP_API bool lies_in_shared_block(const at::Tensor& tensor);

}  // namespace lockstep
