// The layout of tensors in memory.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lockstep {

// Whether `tensor` has these strides. Dimensions of size 1 are ignored, because their strides do
// not matter.
inline bool has_strides(const at::Tensor& tensor, at::IntArrayRef strides) {
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
    if (tensor.size(dim) != 1 && tensor.stride(dim) != strides[static_cast<std::size_t>(dim)])
      return false;
  return true;
}

// The strides of `tensor` if its elements fill its memory, as with channels_last. Otherwise the
// strides of a contiguous tensor of its shape.
inline std::vector<std::int64_t> dense_strides(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor.strides().vec();
  std::vector<std::int64_t> strides(static_cast<std::size_t>(tensor.dim()), 1);
  for (std::size_t dim = strides.size(); dim > 1; --dim)
    strides[dim - 2] = strides[dim - 1] * tensor.size(static_cast<std::int64_t>(dim) - 1);
  return strides;
}

}  // namespace lockstep
