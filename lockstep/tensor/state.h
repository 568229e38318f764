// Training state: objects describe their state as named tensors and values, and a checkpoint reads
// this description. Follows PyTorch's state_dict(), load_state_dict() and
// torch.distributed.checkpoint.stateful.Stateful.
//
// A state has no topology: names and shapes are those of the whole, independent of its distribution
// over ranks. State that each rank has for itself, such as a random generator, has the rank in its
// name.
//
// A rank holds a whole tensor; or boxes of it (state_types.h), which form its local tensor; or a
// range of the elements of either. The parts of all ranks together contain each element. Boxes, or
// ranges, of two ranks may overlap only if one contains the other, as copies do.
//
// Ranges exist beside boxes because ZeRO cuts parameters in memory order, which may not be row by
// row (channels_last). Such a range is one run of memory and one message, but up to 2 * dimensions
// - 1 boxes. A checkpoint converts a range to boxes only if another rank has boxes of the same
// tensor, or if the range is read.

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

// A tensor of a state, or this rank's part of it.
struct StateTensor {
  // The local tensor, of any layout; or its elements [begin, begin + data.numel()) in one
  // dimension. The local tensor is the whole one, or the one that `boxes` form.
  at::Tensor data;

  std::vector<std::int64_t> shape;  // Shape of the whole.

  // Strides of the whole in memory, if parts are counted in memory order. Empty if they are counted
  // row by row, and if there are boxes.
  std::vector<std::int64_t> strides = {};

  std::int64_t begin = 0;  // Counted in the local tensor.

  // The ranks' values may differ, such as the running mean of a BatchNorm: the lowest rank that has
  // it is saved. If false, all ranks that have a whole tensor have the same one, and any of them
  // may be saved.
  bool of_rank_0 = false;

  // Only for a saved tensor on the meta device: equal for tensors with equal type, shape and
  // elements.
  std::optional<std::uint32_t> digest = {};

  // Parts of the whole, in the order in which they form the local tensor. Empty if that is the
  // whole.
  Boxes boxes = {};

  bool is_whole() const { return boxes.empty() && data.sizes() == at::IntArrayRef(shape); }
};

// The tensors and values of one Stateful, by name. Values of the same name are equal on all ranks
// that have it.
struct StateDict {
  std::map<std::string, StateTensor> tensors;
  StateValues values;
};

// The whole of `tensor`, sharing its memory.
LOCKSTEP_API StateTensor whole(const at::Tensor& tensor);

// Elements of a tensor that a rank needs: [begin, end) of its local tensor, counted row by row. The
// local tensor is the whole one, or the one that `boxes` form.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  // Target of the read, if defined: contiguous, on the CPU, of the saved type and as many elements.
  // load_state_dict() then gets this tensor. It is written only after all ranks have verified all
  // that is loaded.
  at::Tensor into = {};

  Boxes boxes = {};  // Boxes of the whole; may overlap. Empty: the whole.
};

// The whole local tensor that `boxes` form.
LOCKSTEP_API ElementRange all_of(Boxes boxes, at::Tensor into = {});

// The elements of each tensor that a rank needs, by name.
using StateRequest = std::map<std::string, ElementRange>;

// An object whose state can be saved and loaded. All ranks have objects of the same kind, and save
// and load them together.
class LOCKSTEP_API Stateful {
 public:
  virtual ~Stateful() = default;

  // Returns the state of this rank, sharing its memory where possible.
  virtual StateDict state_dict() = 0;

  // Returns the elements that this rank needs of `saved`, whose tensors are on the meta device,
  // without elements. Changes nothing.
  // Errors: misuse, naming each mismatch.
  virtual StateRequest wanted(const StateDict& saved) = 0;

  // Receives the requested elements, on the CPU and verified, and all values. It may keep the
  // tensors. Without `into`, a local tensor that was requested whole has its shape (local_shape()),
  // and a part of one has one dimension. Collective for state that is spread over ranks. All ranks
  // have received theirs, so it should not fail.
  virtual void load_state_dict(StateDict state) = 0;
};

// A request for all of `saved`, for a rank without parts.
LOCKSTEP_API StateRequest everything(const StateDict& saved);

// States under the names of the parts of a checkpoint, such as "model". A name has 1 to 64 letters,
// digits, '_' and '-', and does not start with '-'.
// Lifetime: they outlive all that refers to them.
using NamedStates = std::vector<std::pair<std::string, Stateful*>>;

// Returns the value `name`. Errors: misuse, naming it, if it is missing or has another type.
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
