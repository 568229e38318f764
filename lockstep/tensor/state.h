// Training state as named tensors and values, for checkpoints. Follows PyTorch's
// torch.distributed.checkpoint.stateful.Stateful.
//
// Names and shapes are those of whole tensors, independent of the number of ranks. State of one
// rank, such as its random generator, has the rank in its name.
//
// A rank's local tensor is the whole tensor, or boxes of it (state_types.h). With ZeRO, the rank
// holds only a range of its local tensor's elements. All ranks' parts together contain each
// element. Boxes, or ranges, of two ranks may overlap only if one contains the other.

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

  std::vector<std::int64_t> shape;  // That of the whole.

  // Strides of the whole, if `begin` counts elements in memory order. Empty if it counts row by
  // row, and with boxes.
  std::vector<std::int64_t> strides = {};

  std::int64_t begin = 0;  // Counted in the local tensor.

  // Values may differ between ranks, as a BatchNorm's running mean: the lowest rank's is saved. If
  // false, all whole tensors are equal, and any may be saved.
  bool of_rank_0 = false;

  // For a saved tensor on meta: equal for equal type, shape and elements.
  std::optional<std::uint32_t> digest = {};

  // Parts of the whole, in the local tensor's order; empty for the whole.
  Boxes boxes = {};

  bool is_whole() const { return boxes.empty() && data.sizes() == at::IntArrayRef(shape); }
};

// A value is equal on all ranks that have it.
struct StateDict {
  std::map<std::string, StateTensor> tensors;
  StateValues values;
};

// Shares the memory of `tensor`.
LOCKSTEP_API StateTensor whole(const at::Tensor& tensor);

// Elements [begin, end) of a rank's local tensor, counted row by row.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  // Destination, if defined: contiguous, on the CPU, of the saved type and as many elements.
  // Written only after all ranks have verified the checkpoint.
  at::Tensor into = {};

  Boxes boxes = {};  // They may overlap. Empty: the whole.
};

LOCKSTEP_API ElementRange all_of(Boxes boxes, at::Tensor into = {});

using StateRequest = std::map<std::string, ElementRange>;

// An object whose state all ranks save and load together. Each has an object of the same kind.
class LOCKSTEP_API Stateful {
 public:
  virtual ~Stateful() = default;

  // This rank's state, sharing memory where possible.
  virtual StateDict state_dict() = 0;

  // The elements that this rank needs of `saved`, whose tensors are on meta. Changes nothing.
  // Errors: misuse, naming each mismatch.
  virtual StateRequest wanted(const StateDict& saved) = 0;

  // Receives the requested elements, on the CPU and verified, and all values. The object may keep
  // the tensors. Without `into`, a whole local tensor has its own shape, a part one dimension. May
  // be collective. Should not fail: by then, all ranks have their elements.
  virtual void load_state_dict(StateDict state) = 0;
};

LOCKSTEP_API StateRequest everything(const StateDict& saved);

// States by the names of a checkpoint's parts, such as "model": 1 to 64 letters, digits, '_' and
// '-', not starting with '-'. Lifetime: the states outlive all users.
using NamedStates = std::vector<std::pair<std::string, Stateful*>>;

// Errors: misuse, naming the value, if it is missing or has another type.
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
