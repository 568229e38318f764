// Which rank writes what: each named tensor whole, by one of the ranks that have it, so that all
// write about as many bytes. Every rank makes the same plan of what all of them have described.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/tensor/placed_box.h"
#include "lockstep/tensor/state.h"

namespace lockstep::checkpoint {

// The state of one rank, by part, in the program's order.
using NamedStateDicts = std::vector<std::pair<std::string, StateDict>>;

struct PlannedTensor {
  // The contribution of one rank.
  struct Share {
    int rank = 0;
    std::int64_t elements = 0;  // Of its data, all of which travel to the writer.
    std::vector<PlacedBox> boxes;
  };

  std::string part;
  SafetensorsEntry entry;             // Without its place in a file.
  std::vector<std::int64_t> strides;  // As StateTensor::strides.
  int writer = 0;
  std::vector<Share> shares;  // They hold each element once. Empty when the writer has the whole.

  // Shape in which the boxes of shares are counted: the tensor's; or, where all ranks have ranges
  // of elements in the order of `strides`, one dimension.
  std::vector<std::int64_t> grid;

  std::uint64_t bytes() const { return entry.end; }
};

struct SavePlan {
  std::vector<PlannedTensor> tensors;  // By part, and then in the order of their files.
  std::map<std::string, StateValues> values;
};

// Describes the state of one rank as text. Errors: misuse for a name that is not UTF-8 or not a
// part's, an undefined tensor, or boxes or elements that do not lie in the tensor; unsupported for
// one that safetensors has no type for.
std::string describe(const NamedStateDicts& states);

// Makes the plan from the descriptions of all ranks. Errors: mismatch, naming the tensor or value,
// when ranks differ in the parts that they have, in types, shapes or values, lack elements of a
// tensor, or have parts of it that overlap (state.h).
SavePlan make_plan(const std::vector<std::string>& descriptions);

// Returns the name of file `index` of a part's `count` files, such as
// "model-00001-of-00002.safetensors".
std::string file_name(const std::string& part, std::size_t index, std::size_t count);

}  // namespace lockstep::checkpoint
