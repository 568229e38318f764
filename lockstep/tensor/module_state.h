// Modules and LibTorch's random generators as Stateful.
//
// Errors, for modules: misuse, naming the tensors, if one is missing in the module or the saved
// state, or differs in type or shape. Mismatch if a tensor with two names was saved with two
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

// A module's parameters and buffers. Buffers are saved from rank 0, because a BatchNorm's differ
// between ranks. A tensor with two names is saved under both, and loaded if one exists. Cut
// parameters (sharded_module.h) are saved as whole ones, for loading with any layout.
// Lifetime: `module` outlives the result.
// Errors: also misuse for a module on the meta device. Loading: misuse for parameters in memory
// that the host's ranks share (share_parameters), because every rank would write to them.
LOCKSTEP_API std::unique_ptr<Stateful> state_of(torch::nn::Module& module);
[[deprecated("use state_of()")]] inline std::unique_ptr<Stateful> module_state(
    torch::nn::Module& module) {
  return state_of(module);
}

// The result shares the script's object.
LOCKSTEP_API std::unique_ptr<Stateful> state_of(const torch::jit::Module& script);
[[deprecated("use state_of()")]] inline std::unique_ptr<Stateful> module_state(
    const torch::jit::Module& script) {
  return state_of(script);
}

// Parts of state_of(module), for other classes that hold a module.
LOCKSTEP_API StateDict state_dict_of(const torch::nn::Module& module);

// `types`: saved types that differ from the module's.
LOCKSTEP_API void require_fits(const torch::nn::Module& module, const StateDict& saved,
                               const std::map<std::string, at::ScalarType>& types = {});

// Requests the tensors of the module that `saved` has, into new tensors.
LOCKSTEP_API StateRequest wanted_apart(const torch::nn::Module& module, const StateDict& saved);

// As wanted_apart(), but into the module's contiguous CPU tensors, except those that copy_into()
// must compare.
LOCKSTEP_API StateRequest wanted_in_place(const torch::nn::Module& module, const StateDict& saved);

// Copies the loaded tensors into the module. For a tensor read in place, only increases its
// autograd version counter. Errors: mismatch for unequal values of one tensor that were not
// compared before; tensors read in place then keep their new values.
LOCKSTEP_API void copy_into(const torch::nn::Module& module, const StateDict& state);

// Each rank's default CPU generator, saved as "rank.0", "rank.1" and so on. Every version seeds a
// rank without a saved generator with XXH3_64bits_withSeed(rank 0's state, seed = its rank).
class LOCKSTEP_API RandomGenerators : public Stateful {
 public:
  explicit RandomGenerators(const ProcessGroup& group);
  [[deprecated("pass a group")]] RandomGenerators() : rank_(0) {}

  StateDict state_dict() override;

  // Requests this rank's generator, otherwise rank 0's. Errors: misuse if both are missing, or the
  // state is another LibTorch's.
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 private:
  int rank_;
};

}  // namespace lockstep
