// The assignment of tensors to ranks that write them. One of the ranks that have a tensor writes
// the whole tensor, and all ranks write about as many bytes. All ranks compute the same plan from
// the descriptions of all states.

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
  // The contribution of one rank to a tensor.
  struct Share {
    int rank = 0;
    std::int64_t elements = 0;  // Number of elements that are sent to the writer.
    std::vector<PlacedBox> boxes;
  };

  std::string part;
  SafetensorsEntry entry;             // Without the position in a file.
  std::vector<std::int64_t> strides;  // As StateTensor::strides.
  int writer = 0;
  std::vector<Share> shares;  // Disjoint. Empty if the writer has the whole tensor.

  // The shape to which the boxes of shares refer. It is the tensor's shape, or one dimension if all
  // ranks have ranges of elements in the order of `strides`.
  std::vector<std::int64_t> grid;

  std::uint64_t bytes() const { return entry.end; }
};

struct SavePlan {
  std::vector<PlannedTensor> tensors;  // By part, then in file order.
  std::map<std::string, StateValues> values;
};

// Describes the state of one rank as text.
// Errors: misuse for an invalid part, a name that is not UTF-8, or an undefined tensor. misuse for
// boxes or elements outside of the tensor. unsupported for a type that safetensors lacks.
std::string describe(const NamedStateDicts& states);

// Computes the plan from the descriptions of all ranks.
// Errors: mismatch, naming the tensor or value, if the ranks' parts, types, shapes or values
// differ. mismatch if their parts of a tensor have gaps or overlap (state.h).
SavePlan make_plan(const std::vector<std::string>& descriptions);

// Returns the name of file `index` of a part's `count` files, such as
// "model-00001-of-00002.safetensors".
std::string file_name(const std::string& part, std::size_t index, std::size_t count);

}  // namespace lockstep::checkpoint
