// Boxes with the places that their elements have in a rank's data: how a checkpoint finds the parts
// of a tensor in memory.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/tensor/state_types.h"

namespace lockstep {

// Element [i, j, ...] of the box is element begin + i * strides[0] + j * strides[1] + ... of the
// data, which has one dimension.
struct PlacedBox {
  Box box;
  std::vector<std::int64_t> strides;
  std::int64_t begin = 0;
};

// The boxes of a tensor of `shape` that elements [begin, end) of the local tensor lie in, counted
// row by row; data holds these elements. Boxes without elements are left out. Without `boxes` the
// local tensor is the whole one, whose range makes at most 2 * dimensions - 1 boxes. Requires:
// `boxes` fit `shape`, and the range lies in the local tensor.
std::vector<PlacedBox> place(const std::vector<std::int64_t>& shape, const Boxes& boxes,
                             std::int64_t begin, std::int64_t end);

// Elements [begin, end) of a tensor of one dimension.
PlacedBox place(std::int64_t begin, std::int64_t end);

// The box in `tensor`, the whole one: a view.
at::Tensor view_in_whole(const at::Tensor& tensor, const Box& box);

// The box in `data`, contiguous and of one dimension: a view.
at::Tensor view_in_data(const at::Tensor& data, const PlacedBox& box);

// The run of elements of `whole`, which is contiguous, that is the data of `elements` elements in
// its order: a view of one dimension. Undefined when the data does not lie there in one run, or has
// elements that are in none of `boxes`. Requires: at least one box.
at::Tensor run_in_whole(const at::Tensor& whole, const std::vector<PlacedBox>& boxes,
                        std::int64_t elements);

// Example: "offsets [0, 3] and sizes [8, 3]", for messages.
std::string text_of(const Box& box);

// Example: "[0, 3]".
std::string bracketed(const std::vector<std::int64_t>& numbers);

}  // namespace lockstep
