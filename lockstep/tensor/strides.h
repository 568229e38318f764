// Whether tensors are laid out alike in memory.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

// Whether `tensor` has these strides, but for dimensions of size 1, whose strides do not matter.
inline bool has_strides(const at::Tensor& tensor, at::IntArrayRef strides) {
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
    if (tensor.size(dim) != 1 && tensor.stride(dim) != strides[static_cast<std::size_t>(dim)])
      return false;
  return true;
}

}  // namespace lockstep
