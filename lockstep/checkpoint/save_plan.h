// Assigns tensors to ranks. One of the ranks that have data of a tensor writes all of it; ranks
// write about equally many bytes. Each rank computes the same plan.

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

// By part, in the program's order.
using NamedStateDicts = std::vector<std::pair<std::string, StateDict>>;

struct PlannedTensor {
  struct Share {
    int rank = 0;
    std::int64_t elements = 0;  // Elements sent to the writer.
    std::vector<PlacedBox> boxes;
  };

  std::string part;
  SafetensorsEntry entry;             // begin is 0, end the size: no position in a file.
  std::vector<std::int64_t> strides;  // As StateTensor::strides.
  int writer = 0;
  std::vector<Share> shares;  // With disjoint boxes. Empty if the writer has the whole tensor.

  // The shape to which the shares' boxes refer: the tensor's, or one dimension if all ranks have
  // ranges of elements in the order of `strides`.
  std::vector<std::int64_t> grid;

  std::uint64_t bytes() const { return entry.end; }
};

struct SavePlan {
  std::vector<PlannedTensor> tensors;  // By part, then in file order.
  std::map<std::string, StateValues> values;
};

// Errors: misuse for an invalid part, a name that is not UTF-8, an undefined tensor, and boxes or
// elements outside of the tensor. unsupported for a type that safetensors lacks.
std::string describe(const NamedStateDicts& states);

// Errors: mismatch, naming the tensor or value, if the ranks' parts, types, shapes or values
// differ. mismatch for gaps or forbidden overlaps (state.h) between the ranks' data of a tensor.
SavePlan make_plan(const std::vector<std::string>& descriptions);

// "model-00001-of-00002.safetensors" for the first of two files.
std::string file_name(const std::string& part, std::size_t index, std::size_t count);

}  // namespace lockstep::checkpoint
