// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/module_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/differences.h"
#include "lockstep/tensor/generator_states.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/script_module.h"
#include "lockstep/tensor/sharded_module.h"
#include "lockstep/tensor/tensor_memory.h"
#include "lockstep/tensor/weight_state.h"

namespace lockstep {
namespace {

// For one type and shape; empty if they must be read first.
std::optional<bool> are_equal(const StateTensor& one, const StateTensor& other) {
  if (one.digest && other.digest) return *one.digest == *other.digest;
  if (one.data.is_meta() || other.data.is_meta()) return std::nullopt;
  const at::Tensor first = plain_values(one.data);
  const at::Tensor second = plain_values(other.data);
  if (first.nbytes() != second.nbytes()) return false;
  return first.const_data_ptr() == second.const_data_ptr() ||
         std::memcmp(first.const_data_ptr(), second.const_data_ptr(), first.nbytes()) == 0;
}

void require_equal_where_tied(const torch::nn::Module& module, const StateDict& saved) {
  for (const auto& [name, first] : first_names(named_tensors(module)))
    if (saved.tensors.contains(name) && saved.tensors.contains(first) &&
        !are_equal(saved.tensors.at(name), saved.tensors.at(first)).value_or(true))
      throw Error(Fault::mismatch, first + " and " + name +
                                       " are one tensor in the module, and were saved with unequal "
                                       "elements, as two tensors or by replicas that had drifted "
                                       "apart");
}

class ModuleState final : public WeightState {
 public:
  explicit ModuleState(torch::nn::Module& module) : module_(module) {}

  explicit ModuleState(std::unique_ptr<torch::nn::Module> module)
      : owned_(std::move(module)), module_(*owned_) {}

  StateDict state_dict() override {
    require_values(named_tensors(module_), "state_of");
    return state_dict_of(module_);
  }

  StateRequest wanted(const StateDict& saved) override {
    require_loadable();
    require_fits(module_, saved);
    return wanted_in_place(module_, saved);
  }

  StateRequest wanted_of_part(const StateDict& saved) override {
    require_loadable();
    require_part_fits(module_, saved);
    return wanted_in_place(module_, saved);
  }

  StateTargets targets() override { return targets_of(module_, /*has_values=*/true); }

  void load_state_dict(StateDict state) override { copy_into(module_, state); }

 private:
  void require_loadable() const {
    require_values(named_tensors(module_), "state_of");
    for (const auto& [name, parameter] : named_parameters(module_))
      require(!lies_in_shared_block(parameter), [&, &name = name] {
        return "parameter " + name +
               " is shared by all ranks, which would all write to it: add the "
               "DistributedDataParallel to the state instead of its module";
      });
  }

  const std::unique_ptr<torch::nn::Module> owned_;
  torch::nn::Module& module_;
};

std::string name_of(int rank) { return "rank." + std::to_string(rank); }

void require_accepted(bool ok, const std::string& name) {
  require(ok, [&] {
    return "RandomGenerators: '" + name + "' is not the state of a generator of this LibTorch";
  });
}

void restore(const at::Tensor& state, const std::string& name) {
  try {
    set_default_generator_state(state);
  } catch (const c10::Error&) {
    require_accepted(false, name);
  }
}

// Frozen. LibTorch's Mersenne twister uses only the low 32 bits.
std::uint64_t seed_of(const at::Tensor& state_of_rank_0, int rank) {
  return XXH3_64bits_withSeed(state_of_rank_0.const_data_ptr(), state_of_rank_0.nbytes(),
                              static_cast<XXH64_hash_t>(rank));
}

}  // namespace

std::unique_ptr<Stateful> state_of(torch::nn::Module& module) {
  return std::make_unique<ModuleState>(module);
}

std::unique_ptr<Stateful> state_of(const torch::jit::Module& script) {
  return std::make_unique<ModuleState>(std::make_unique<ScriptModule>(script));
}

StateDict state_dict_of(const torch::nn::Module& module) {
  StateDict state;
  for (const auto& [name, parameter] : named_parameters(module))
    state.tensors.emplace(name, whole(parameter));
  for (const auto& [name, layout] : layouts_of(module)) {
    StateTensor& part = state.tensors.at(name);
    part.shape = layout.shape;
    part.boxes = layout.boxes;
  }
  for (const auto& [name, buffer] : named_buffers(module))
    state.tensors.emplace(name, whole(buffer)).first->second.of_rank_0 = true;
  return state;
}

StateTargets targets_of(const torch::nn::Module& module, bool has_values,
                        const std::map<std::string, at::ScalarType>& types) {
  StateTargets targets;
  const NamedTensors tensors = named_tensors(module);
  const auto firsts = first_names(tensors);
  const Layouts layouts = layouts_of(module);
  for (const auto& [name, tensor] : tensors) {
    const auto layout = layouts.find(name);
    const auto type = types.find(name);
    targets.emplace(
        name,
        StateTarget{.type = type == types.end() ? tensor.scalar_type() : type->second,
                    .shape = layout == layouts.end() ? tensor.sizes().vec() : layout->second.shape,
                    .first_name = firsts.at(name),
                    .has_value = has_values});
  }
  return targets;
}

namespace {

void require_fit(const torch::nn::Module& module, const StateDict& saved,
                 const std::map<std::string, at::ScalarType>& types, bool is_partial) {
  Mismatches mismatches;
  const StateTargets targets = targets_of(module, /*has_values=*/true, types);
  std::unordered_set<std::string> saved_firsts;
  for (const auto& [name, target] : targets)
    if (saved.tensors.contains(name)) saved_firsts.insert(target.first_name);
  for (const auto& [name, target] : targets) {
    const bool may_be_missing = is_partial || saved_firsts.contains(target.first_name);
    if (!saved.tensors.contains(name) && may_be_missing) continue;
    mismatches.find(saved, name, target.type, target.shape);
  }
  for (const auto& [name, tensor] : saved.tensors)
    if (!targets.contains(name)) mismatches.add(name + " was saved and is not in the module");
  mismatches.require_none("the saved state is not that of this module");
  require_equal_where_tied(module, saved);
}

}  // namespace

void require_fits(const torch::nn::Module& module, const StateDict& saved,
                  const std::map<std::string, at::ScalarType>& types) {
  require_fit(module, saved, types, /*is_partial=*/false);
}

void require_part_fits(const torch::nn::Module& module, const StateDict& saved,
                       const std::map<std::string, at::ScalarType>& types) {
  require_fit(module, saved, types, /*is_partial=*/true);
}

StateRequest wanted_apart(const torch::nn::Module& module, const StateDict& saved) {
  StateRequest request = everything(saved);
  for (const auto& [name, layout] : layouts_of(module))
    if (request.contains(name)) request.at(name) = all_of(layout.boxes);
  return request;
}

StateRequest wanted_in_place(const torch::nn::Module& module, const StateDict& saved) {
  StateRequest request = wanted_apart(module, saved);
  const NamedTensors tensors = named_tensors(module);
  for (const auto& [name, tensor] : tensors)
    if (request.contains(name) && has_plain_values(tensor)) request.at(name).into = tensor.detach();
  for (const auto& [name, first] : first_names(tensors))
    if (name != first && request.contains(name) && request.contains(first) &&
        !are_equal(saved.tensors.at(name), saved.tensors.at(first)))
      request.at(name).into.reset();  // copy_into() compares them.
  return request;
}

void copy_into(const torch::nn::Module& module, const StateDict& state) {
  const at::NoGradGuard no_grad;
  require_equal_where_tied(module, state);
  for (const auto& [name, tensor] : named_tensors(module)) {
    const auto found = state.tensors.find(name);
    if (found == state.tensors.end()) continue;
    const at::Tensor& loaded = found->second.data;
    if (loaded.is_alias_of(tensor))
      tensor.unsafeGetTensorImpl()->bump_version();
    else
      at::Tensor(tensor).copy_(loaded);
  }
}

RandomGenerators::RandomGenerators(const ProcessGroup& group) : rank_(group.rank()) {}

StateDict RandomGenerators::state_dict() {
  return {.tensors = {{name_of(rank_), whole(default_generator_state())}}, .values = {}};
}

StateRequest RandomGenerators::wanted(const StateDict& saved) {
  const std::string name = name_of(saved.tensors.contains(name_of(rank_)) ? rank_ : 0);
  const auto found = saved.tensors.find(name);
  require(found != saved.tensors.end(),
          [&] { return "RandomGenerators: the saved state has no '" + name + "'"; });
  const at::Tensor ours = default_generator_state();
  const at::Tensor& theirs = found->second.data;
  require_accepted(theirs.scalar_type() == ours.scalar_type() && theirs.sizes() == ours.sizes(),
                   name);
  return {{name, {0, theirs.numel()}}};
}

void RandomGenerators::load_state_dict(StateDict state) {
  if (const auto own = state.tensors.find(name_of(rank_)); own != state.tensors.end())
    return restore(own->second.data, own->first);
  const auto first = state.tensors.find(name_of(0));
  require(first != state.tensors.end(), "RandomGenerators: no state of rank 0 was loaded");
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed_of(first->second.data.contiguous(), rank_));
}

}  // namespace lockstep
