// How lists of tensors travel: their types and shapes as a description, their elements as one
// block.

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
  std::optional<at::ScalarType> type;  // None of an undefined tensor.
  std::vector<std::int64_t> sizes;
  std::int64_t begin = 0;  // Bytes from the start of the list's block, aligned for every type.
  std::int64_t bytes = 0;
};

struct ListLayout {
  std::vector<TensorLayout> tensors;
  std::int64_t bytes = 0;
};

// Errors: as require_dense().
ListLayout layout_of(const std::vector<at::Tensor>& tensors);

// Not kept anywhere, so that it may change: magic, number of lists; of each list its bytes, the
// number of its tensors; of each tensor its type or -1, the number of its dimensions, these; all of
// them 64-bit words of this host.
std::string encode(const std::vector<ListLayout>& lists);

// Errors: corrupt for what encode() cannot have made. Takes a few times the memory of `text`.
std::vector<ListLayout> decode(std::string_view text);

// The tensors of a list in its block of bytes: views, which may be written as well as read.
std::vector<at::Tensor> views_of(const ListLayout& list, const at::Tensor& block);

}  // namespace lockstep
