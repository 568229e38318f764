// The state of modules, and of LibTorch's random generators, as Stateful.
//
// Errors, for modules: misuse, naming the tensors, if a tensor is missing in the module or the
// saved state, or differs in type or shape. Mismatch if a tensor with two names was saved with two
// values.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>

#include "lockstep/base/api.h"
#include "lockstep/tensor/state.h"

namespace torch::jit {
struct Module;
}

namespace torch::nn {
class Module;
}

namespace lockstep {

class ProcessGroup;

// A module's parameters and buffers under their names. Buffers are saved from rank 0, because a
// BatchNorm's differ between ranks. A tensor with two names is saved under both, and loaded if one
// exists. Parameters that are cut over ranks (sharded_module.h) are saved as parts of whole ones,
// for any other layout.
// Lifetime: `module` outlives the result.
// Errors: also misuse for a module on the meta device. Also, when loading, for parameters that all
// ranks of a host share, because every rank would write to them.
LOCKSTEP_API std::unique_ptr<Stateful> module_state(torch::nn::Module& module);

// As above, for a TorchScript module. The result shares the script's object.
LOCKSTEP_API std::unique_ptr<Stateful> module_state(const torch::jit::Module& script);

// For classes that hold a module in another way.
LOCKSTEP_API StateDict state_of(const torch::nn::Module& module);

// `types` are those of tensors that are saved in another type than the module's.
LOCKSTEP_API void require_fits(const torch::nn::Module& module, const StateDict& saved,
                               const std::map<std::string, at::ScalarType>& types = {});

// Requests all tensors that the module has in common with `saved`, into new tensors.
LOCKSTEP_API StateRequest wanted_apart(const torch::nn::Module& module, const StateDict& saved);

// As wanted_apart(), but reads directly into the module's tensors where they are contiguous in CPU
// memory.
LOCKSTEP_API StateRequest wanted_in_place(const torch::nn::Module& module, const StateDict& saved);

// Copies the loaded tensors into the module. For tensors that were read in place it only increases
// autograd's version counter. Errors: mismatch if two values of one tensor could not be compared
// before; the module then has the values that were read in place.
LOCKSTEP_API void copy_into(const torch::nn::Module& module, const StateDict& state);

// Each rank's default LibTorch generator, saved as "rank.0", "rank.1" and so on. A rank without a
// saved generator is seeded with XXH3_64bits_withSeed(rank 0's state, seed = its rank). This rule
// is frozen.
class LOCKSTEP_API RandomGenerators : public Stateful {
 public:
  explicit RandomGenerators(const ProcessGroup& group);
  RandomGenerators() = default;  // For a process that trains alone.

  StateDict state_dict() override;

  // Requests this rank's generator, or rank 0's if there is none. Errors: misuse if both are
  // missing, or the state does not belong to a generator of this LibTorch.
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 private:
  int rank_ = 0;
};

}  // namespace lockstep
