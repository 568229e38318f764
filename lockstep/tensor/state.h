// Training state: objects describe their state as named tensors and values, for checkpoints.
// Follows PyTorch's state_dict(), load_state_dict() and
// torch.distributed.checkpoint.stateful.Stateful.
//
// A state has no topology: names and shapes are those of the whole. State that each rank has for
// itself, such as a random generator, has the rank in its name.
//
// A rank holds a whole tensor, or boxes of it (state_types.h), which form its local tensor. It may
// also hold only a range of the elements of either, because ZeRO cuts parameters so. The parts of
// all ranks contain each element. Boxes, or ranges, of two ranks may overlap only if one contains
// the other.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/tensor/state_types.h"

namespace lockstep {

struct StateTensor {
  // The local tensor, or its elements [begin, begin + data.numel()) in one dimension.
  at::Tensor data;

  std::vector<std::int64_t> shape;  // Shape of the whole.

  // Strides of the whole, if parts are counted in memory order. Empty if they are counted row by
  // row, and if there are boxes.
  std::vector<std::int64_t> strides = {};

  std::int64_t begin = 0;  // Counted in the local tensor.

  // The ranks' values may differ, as a BatchNorm's running mean: the lowest rank that has it is
  // saved. If false, all whole tensors are equal, and any may be saved.
  bool of_rank_0 = false;

  // For a saved tensor on meta: equal for tensors with equal type, shape and elements.
  std::optional<std::uint32_t> digest = {};

  // Parts of the whole, in the order in which they form the local tensor; empty for the whole.
  Boxes boxes = {};

  bool is_whole() const { return boxes.empty() && data.sizes() == at::IntArrayRef(shape); }
};

// The tensors and values of one Stateful. A value is equal on all ranks that have it.
struct StateDict {
  std::map<std::string, StateTensor> tensors;
  StateValues values;
};

// The whole of `tensor`, sharing its memory.
LOCKSTEP_API StateTensor whole(const at::Tensor& tensor);

// Elements [begin, end) of a rank's local tensor, counted row by row.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  // Target of the read, if defined, for load_state_dict(): contiguous, on the CPU, of the saved
  // type and as many elements. It is written only after all ranks have verified all that is loaded.
  at::Tensor into = {};

  Boxes boxes = {};  // They may overlap. Empty: the whole.
};

// All of the local tensor.
LOCKSTEP_API ElementRange all_of(Boxes boxes, at::Tensor into = {});

using StateRequest = std::map<std::string, ElementRange>;

// An object whose state can be saved and loaded, by all ranks together, which have objects of the
// same kind.
class LOCKSTEP_API Stateful {
 public:
  virtual ~Stateful() = default;

  // This rank's state, sharing its memory where possible.
  virtual StateDict state_dict() = 0;

  // The elements that this rank needs of `saved`, whose tensors are on the meta device. Changes
  // nothing.
  // Errors: misuse, naming each mismatch.
  virtual StateRequest wanted(const StateDict& saved) = 0;

  // Receives the requested elements, on the CPU and verified, and all values. It may keep the
  // tensors. Without `into`, a whole local tensor has its shape (local_shape()), a part one
  // dimension. May be collective. All ranks have received theirs, so it should not fail.
  virtual void load_state_dict(StateDict state) = 0;
};

// A request for all of `saved`.
LOCKSTEP_API StateRequest everything(const StateDict& saved);

// States by the names of a checkpoint's parts, such as "model": 1 to 64 letters, digits, '_' and
// '-', not starting with '-'. Lifetime: the states outlive all that refers to them.
using NamedStates = std::vector<std::pair<std::string, Stateful*>>;

// The value `name`. Errors: misuse, naming it, if it is missing or has another type.
template <class T>
const T& value_of(const StateDict& state, const std::string& name);

extern template LOCKSTEP_API const bool& value_of<bool>(const StateDict&, const std::string&);
extern template LOCKSTEP_API const std::int64_t& value_of<std::int64_t>(const StateDict&,
                                                                        const std::string&);
extern template LOCKSTEP_API const double& value_of<double>(const StateDict&, const std::string&);
extern template LOCKSTEP_API const std::string& value_of<std::string>(const StateDict&,
                                                                      const std::string&);
extern template LOCKSTEP_API const std::vector<double>& value_of<std::vector<double>>(
    const StateDict&, const std::string&);

}  // namespace lockstep
