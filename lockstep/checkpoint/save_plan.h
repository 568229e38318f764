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
#include "lockstep/tensor/state.h"

namespace lockstep {

// The state of one rank, by part, in the program's order.
using NamedStateDicts = std::vector<std::pair<std::string, StateDict>>;

struct PlannedTensor {
  struct Piece {
    int rank = 0;
    std::int64_t begin = 0;  // Elements, in the order of `strides`.
    std::int64_t end = 0;
  };

  std::string part;
  SafetensorsEntry entry;             // Without its place in a file.
  std::vector<std::int64_t> strides;  // As StateTensor::strides.
  int writer = 0;
  std::vector<Piece> pieces;  // That cover it in turn; empty when the writer has the whole.

  std::uint64_t bytes() const { return entry.end; }
};

struct SavePlan {
  std::vector<PlannedTensor> tensors;  // By part, and then in the order of their files.
  std::map<std::string, StateValues> values;
};

// Of one rank, as text. Errors: misuse for a name that is not UTF-8 or not a part's, or an
// undefined tensor; unsupported for one that safetensors has no type for.
std::string describe(const NamedStateDicts& states);

// Of all ranks' descriptions. Errors: mismatch, naming the tensor or value, when ranks differ in
// the parts that they have, in types, shapes or values, or lack elements of a tensor.
SavePlan make_plan(const std::vector<std::string>& descriptions);

// Such as "model-00001-of-00002.safetensors", of the files of a part the `index`-th of `count`.
std::string file_name(const std::string& part, std::size_t index, std::size_t count);

}  // namespace lockstep
