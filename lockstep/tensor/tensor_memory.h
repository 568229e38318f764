// Memory of tensors: strides, plain values, tensors on meta, and blocks that all ranks of the host
// share.
//
// Thread safety: any thread may call any function.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/comm/core/buffer.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

// Whether `tensor` has these strides. Ignores dimensions of size 1, whose strides have no effect.
inline bool has_strides(const at::Tensor& tensor, at::IntArrayRef strides) {
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
    if (tensor.size(dim) != 1 && tensor.stride(dim) != strides[static_cast<std::size_t>(dim)])
      return false;
  return true;
}

// The strides of `tensor` if its elements fill its memory, as with channels_last; otherwise those
// of a contiguous tensor of its shape.
inline std::vector<std::int64_t> dense_strides(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor.strides().vec();
  std::vector<std::int64_t> strides(static_cast<std::size_t>(tensor.dim()), 1);
  for (std::size_t dim = strides.size(); dim > 1; --dim)
    strides[dim - 2] = strides[dim - 1] * tensor.size(static_cast<std::int64_t>(dim) - 1);
  return strides;
}

// The form that files and digests need: on the CPU, contiguous, and with no pending operation,
// because LibTorch conjugates and negates lazily.
inline bool has_plain_values(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// `tensor` itself if has_plain_values(), otherwise a copy.
inline at::Tensor plain_values(const at::Tensor& tensor) {
  return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
}

// XXH3-64 of the elements in order. Copies a tensor that is not contiguous, or not on the CPU.
std::uint64_t digest_of(const at::Tensor& tensor);

// --- Tensors on the meta device ------------------------------------------------------------------

// Errors: misuse, naming the tensor, if one is on meta and has no values (on_meta.h). `call` is the
// caller.
void require_values(const NamedTensors& tensors, std::string_view call);

// Gives `tensor`, on meta, and all its handles the memory of `memory`, of the same type and shape.
// It keeps its autograd data. set_data() would refuse the change of device.
void move_from_meta(const at::Tensor& tensor, const at::Tensor& memory);

// --- Memory that all ranks of the host share -----------------------------------------------------
// Code that writes to tensors as its own can refuse these.

// Registers `memory` until the last copy of the returned handle is released.
RegisteredMemory shared_block(RegisteredMemory memory);

// Whether the elements are in a registered block.
bool lies_in_shared_block(const at::Tensor& tensor);

}  // namespace lockstep
