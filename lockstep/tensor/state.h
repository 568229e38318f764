// The vocabulary of training state: who has some describes it as named tensors and values, whoever
// keeps it reads that, and neither knows the other. After PyTorch's state_dict(), load_state_dict()
// and torch.distributed.checkpoint.stateful.Stateful.
//
// A state has no topology: names and shapes are those of the whole, whatever ranks it is spread
// over. What each rank has of its own, a random generator say, has the rank in its name.

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
#include "lockstep/tensor/state_value.h"

namespace lockstep {

// A tensor of a state, or this rank's part of it.
struct StateTensor {
  // The whole tensor, of any layout; or elements [begin, begin + data.numel()) of it, in one
  // dimension.
  at::Tensor data;

  std::vector<std::int64_t> shape;  // Of the whole.

  // Of the whole in memory, where parts are counted in the order of that memory and not row by row.
  // Empty for row by row.
  std::vector<std::int64_t> strides = {};

  std::int64_t begin = 0;

  // Ranks may have unequal ones, such as the running mean of a BatchNorm: rank 0's counts.
  // Otherwise all ranks that have a whole tensor have the same one, and any of them may be saved.
  bool of_rank_0 = false;

  // Only for a saved tensor on the meta device: equal where type, shape and all elements are.
  std::optional<std::uint32_t> digest = {};

  bool is_whole() const { return data.sizes() == at::IntArrayRef(shape); }
};

// What is saved under a name of its own. The values of one name are equal on all ranks that have
// it.
struct StateDict {
  std::map<std::string, StateTensor> tensors;
  StateValues values;
};

// The whole of `tensor`, sharing its memory.
LOCKSTEP_API StateTensor whole(const at::Tensor& tensor);

// Elements [begin, end) of a tensor, counted row by row.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  // Where they are read to, if that exists: contiguous, on the CPU, of the saved type and as many
  // elements. It is what load_state_dict() then gets. Not written to before all that is loaded was
  // verified, on all ranks.
  at::Tensor into = {};
};

// Of each tensor that a rank needs, by name, the elements.
using StateRequest = std::map<std::string, ElementRange>;

// Has a state that can be saved and loaded. Ranks have such objects of one kind, and save and load
// them together.
class LOCKSTEP_API Stateful {
 public:
  virtual ~Stateful() = default;

  // What this rank has, sharing its memory where it can.
  virtual StateDict state_dict() = 0;

  // What this rank needs of `saved`, whose tensors lie on the meta device and so have no elements:
  // a rank that has room for parts asks for these. Changes nothing.
  // Errors: misuse, naming what does not fit.
  virtual StateRequest wanted(const StateDict& saved) = 0;

  // Takes what was wanted, on the CPU and verified, with all values. Tensors that were wanted in
  // part have one dimension; it may keep them. Collective for what is spread over ranks; all ranks
  // have got theirs, so it should not fail.
  virtual void load_state_dict(StateDict state) = 0;
};

// All of `saved`, which is what a rank without parts wants.
LOCKSTEP_API StateRequest everything(const StateDict& saved);

// States under the names of the parts of a checkpoint, such as "model"; 1 to 64 letters,
// digits, '_' and '-', the first not '-'.
// Lifetime: they outlive what refers to them.
using NamedStates = std::vector<std::pair<std::string, Stateful*>>;

// The value of one type. Errors: misuse, naming it, when there is none or of another type.
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
