// The wire form of lists of tensors: a description, then the elements as one block.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct TensorLayout {
  std::optional<at::ScalarType> type;  // Empty for an undefined tensor.
  std::vector<std::int64_t> sizes;
  std::int64_t begin = 0;  // Byte offset in the list's block, aligned for every type.
  std::int64_t bytes = 0;
};

struct ListLayout {
  std::vector<TensorLayout> tensors;
  std::int64_t bytes = 0;
};

// Errors: as require_dense().
ListLayout layout_of(const std::vector<at::Tensor>& tensors);

// 64-bit words of this host: magic, number of lists; per list bytes and number of tensors; per
// tensor type or -1, number of dimensions, sizes. Never stored, so it may change.
std::string encode_layouts(const std::vector<ListLayout>& lists);

// Errors: corrupt for text that encode_layouts() cannot produce. Needs a few times the text's
// memory.
std::vector<ListLayout> decode_layouts(std::string_view text);

// Writable views of the list's block of bytes.
std::vector<at::Tensor> views_of(const ListLayout& list, const at::Tensor& block);

}  // namespace lockstep
