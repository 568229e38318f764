// The vocabulary of training state. Objects with a state describe it as named tensors and values;
// a checkpoint reads the description. Neither knows the other. After PyTorch's state_dict(),
// load_state_dict() and torch.distributed.checkpoint.stateful.Stateful.
//
// A state has no topology: names and shapes are those of the whole, whatever ranks it is spread
// over. State that each rank has for itself, such as a random generator, has the rank in its name.
//
// A rank holds a whole tensor; or boxes of it (state_types.h), which make its local tensor; or a
// range of the elements of either. The parts of all ranks together hold each element. Boxes, or
// ranges, of two ranks may overlap only where one lies within the other, as copies do.
//
// Ranges of elements are kept beside boxes. ZeRO cuts parameters in the order of their memory,
// which need not be row by row (channels_last): such a range is one run of memory and one message,
// but up to 2 * dimensions - 1 boxes. A checkpoint counts a range as these boxes only where it
// must: another rank has boxes of the same tensor, or the range is read.

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
  // The local tensor, of any layout; or elements [begin, begin + data.numel()) of it, in one
  // dimension. Local tensor: the whole one, or the one that `boxes` make.
  at::Tensor data;

  std::vector<std::int64_t> shape;  // Of the whole.

  // Strides of the whole in memory, if parts are counted in the order of that memory. Empty if they
  // are counted row by row, and if there are boxes.
  std::vector<std::int64_t> strides = {};

  std::int64_t begin = 0;  // Counted in the local tensor.

  // Ranks may have unequal ones, such as the running mean of a BatchNorm: that of rank 0 counts, or
  // of the lowest rank that has it.
  // Otherwise all ranks that have a whole tensor have the same one, and any of them may be saved.
  bool of_rank_0 = false;

  // Only for a saved tensor on the meta device: equal where type, shape and all elements are.
  std::optional<std::uint32_t> digest = {};

  // Parts of the whole, in the order in which they make the local tensor. Empty if that is the
  // whole.
  Boxes boxes = {};

  bool is_whole() const { return boxes.empty() && data.sizes() == at::IntArrayRef(shape); }
};

// The tensors and values of one Stateful, by name. The values of one name are equal on all ranks
// that have it.
struct StateDict {
  std::map<std::string, StateTensor> tensors;
  StateValues values;
};

// The whole of `tensor`, sharing its memory.
LOCKSTEP_API StateTensor whole(const at::Tensor& tensor);

// Elements of a tensor that a rank needs: [begin, end) of its local tensor, counted row by row.
// Local tensor: the whole one, or the one that `boxes` make.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  // Target of the read, if defined: contiguous, on the CPU, of the saved type and as many elements.
  // load_state_dict() then gets this tensor. It is not written to before all that is loaded was
  // verified, on all ranks.
  at::Tensor into = {};

  Boxes boxes = {};  // Of the whole. They may overlap. Empty where the whole is meant.
};

// The whole local tensor that `boxes` make.
LOCKSTEP_API ElementRange all_of(Boxes boxes, at::Tensor into = {});

// The elements of each tensor that a rank needs, by name.
using StateRequest = std::map<std::string, ElementRange>;

// Has a state that can be saved and loaded. Ranks have such objects of one kind, and save and load
// them together.
class LOCKSTEP_API Stateful {
 public:
  virtual ~Stateful() = default;

  // Returns the state of this rank, sharing its memory where possible.
  virtual StateDict state_dict() = 0;

  // Returns the elements that this rank needs of `saved`. The tensors of `saved` are on the meta
  // device, without elements. Changes nothing.
  // Errors: misuse, naming what does not fit.
  virtual StateRequest wanted(const StateDict& saved) = 0;

  // Takes the elements that were wanted, on the CPU and verified, and all values. It may keep the
  // tensors.
  // Without `into`, a local tensor that was wanted whole has its shape (local_shape()), and a part
  // of one has one dimension. Collective for what is spread over ranks; all ranks have got theirs,
  // so it should not fail.
  virtual void load_state_dict(StateDict state) = 0;
};

// A request for all of `saved`, for a rank without parts.
LOCKSTEP_API StateRequest everything(const StateDict& saved);

// States under the names of the parts of a checkpoint, such as "model"; 1 to 64 letters,
// digits, '_' and '-', the first not '-'.
// Lifetime: they outlive what refers to them.
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
