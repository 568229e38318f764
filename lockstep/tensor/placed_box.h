// Boxes with the positions of their elements in a rank's data, for checkpoints.

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

// The boxes, without empty ones, of a tensor of `shape` that contain elements [begin, end) of the
// local tensor, counted row by row. Without `boxes` the local tensor is the whole one, and the
// result has at most 2 * dimensions - 1 boxes. Requires: `boxes` fit `shape`, the range the local
// tensor.
std::vector<PlacedBox> place(const std::vector<std::int64_t>& shape, const Boxes& boxes,
                             std::int64_t begin, std::int64_t end);

// Elements [begin, end) of a tensor of one dimension.
PlacedBox place(std::int64_t begin, std::int64_t end);

// A view of the box in the whole tensor.
at::Tensor view_in_whole(const at::Tensor& tensor, const Box& box);

// A view of the box in `data`, which is contiguous and has one dimension.
at::Tensor view_in_data(const at::Tensor& data, const PlacedBox& box);

// The data of `elements` elements as a one-dimensional view of `whole`, which is contiguous.
// Undefined if it is no single run there, or has elements outside of `boxes`, of which there is at
// least one.
at::Tensor run_in_whole(const at::Tensor& whole, const std::vector<PlacedBox>& boxes,
                        std::int64_t elements);

// Such as "offsets [0, 3] and sizes [8, 3]".
std::string text_of(const Box& box);

// Such as "[0, 3]".
std::string bracketed(const std::vector<std::int64_t>& numbers);

}  // namespace lockstep
