// Boxes (state_types.h) and where their elements are in a rank's data, for checkpoints.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/tensor/state_types.h"

namespace lockstep {

// Element [i, j, ...] of the box is element begin + i * strides[0] + j * strides[1] + ... of the
// data.
struct PlacedBox {
  Box box;
  std::vector<std::int64_t> strides;
  std::int64_t begin = 0;
};

// The non-empty boxes, in a tensor of `shape`, of elements [begin, end) of the local tensor,
// counted row by row. Without `boxes` the local tensor is the whole one, and the result has at most
// 2 * dimensions - 1 boxes. Requires: `boxes` fit `shape`; the range fits the local tensor.
std::vector<PlacedBox> place(const std::vector<std::int64_t>& shape, const Boxes& boxes,
                             std::int64_t begin, std::int64_t end);

// Elements [begin, end) of a tensor of one dimension.
PlacedBox place(std::int64_t begin, std::int64_t end);

at::Tensor view_in_whole(const at::Tensor& tensor, const Box& box);

// `data` is contiguous and one-dimensional.
at::Tensor view_in_data(const at::Tensor& data, const PlacedBox& box);

// The data of `elements` elements as a one-dimensional view of the contiguous tensor `whole`.
// Undefined if the data is no contiguous run of `whole`, or has elements outside of `boxes`.
// Requires: at least one box.
at::Tensor run_in_whole(const at::Tensor& whole, const std::vector<PlacedBox>& boxes,
                        std::int64_t elements);

// Such as "offsets [0, 3] and sizes [8, 3]".
std::string text_of(const Box& box);

// Such as "[0, 3]".
std::string bracketed(const std::vector<std::int64_t>& numbers);

}  // namespace lockstep
