// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/local_steps/local_steps.h"

#include <ATen/core/grad_mode.h>

#include <cstddef>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/sharing_ranks.h"
#include "lockstep/optim/optimizer_stateful.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "lockstep/parallel/gradients/gradient_memory.h"
#include "lockstep/parallel/replicate/replicas.h"
#include "lockstep/tensor/cut_tensors.h"
#include "lockstep/tensor/module_state.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep {
namespace {

void require_own_parameters(const NamedTensors& parameters, const std::string& call) {
  require(!parameters.empty(),
          [&] { return call + ": the module has no parameter that requires a gradient"; });
  require_values(parameters, call);
  for (const auto& [name, parameter] : parameters) {
    require(!lies_in_shared_block(parameter), [&, &name = name] {
      return call + ": all ranks of a host share parameter " + name + ", so none can step it alone";
    });
    if (!part_text(parameter).empty())
      throw Error(Fault::unsupported, call + ": parameter " + name + " is cut over ranks");
  }
}

const torch::optim::Optimizer& require_whole(const torch::optim::Optimizer& optimizer,
                                             const std::string& call) {
  if (dynamic_cast<const ShardedOptimizer*>(&optimizer) != nullptr)
    throw Error(Fault::unsupported, call + ": the optimizer is sharded over ranks");
  return optimizer;
}

// --- Parts of a state, under a prefix -----------------------------------------------------------

constexpr const char* module_prefix = "module.";
constexpr const char* optimizer_prefix = "optimizer.";

std::string rank_prefix(std::int64_t rank) {
  std::string prefix = "rank.";
  return prefix.append(std::to_string(rank)).append(".");
}

void add(StateDict& state, const std::string& prefix, StateDict part) {
  for (auto& [name, tensor] : part.tensors) state.tensors.emplace(prefix + name, std::move(tensor));
  for (auto& [name, value] : part.values) state.values.emplace(prefix + name, std::move(value));
}

StateDict part_of(const StateDict& state, const std::string& prefix) {
  StateDict part;
  for (const auto& [name, tensor] : state.tensors)
    if (name.starts_with(prefix)) part.tensors.emplace(name.substr(prefix.size()), tensor);
  for (const auto& [name, value] : state.values)
    if (name.starts_with(prefix)) part.values.emplace(name.substr(prefix.size()), value);
  return part;
}

void add(StateRequest& request, const std::string& prefix, StateRequest part) {
  for (auto& [name, range] : part) request.emplace(prefix + name, std::move(range));
}

// Where this rank finds its own part of `saved`.
struct Prefixes {
  std::string module;
  std::string optimizer;
};

Prefixes prefixes_in(const StateDict& saved, int rank) {
  const std::string own = rank_prefix(rank % value_of<std::int64_t>(saved, "world_size"));
  const bool in_sync = value_of<bool>(saved, "in_sync");
  return {.module = (in_sync ? "" : own) + module_prefix, .optimizer = own + optimizer_prefix};
}

}  // namespace

ProcessGroup host_group(const ProcessGroup& group) {
  constexpr const char* label = "ranks of a host";
  return group.split(sharing_ranks(group, label)[static_cast<std::size_t>(group.rank())], 0,
                     {.label = label});
}

LocalSteps::LocalSteps(torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                       const ProcessGroup& group, std::string name, const std::string& options)
    : module_(module),
      group_(group),
      name_(std::move(name)),
      parameters_(trained_parameters(named_parameters(module))),
      module_state_(module_state(module)),
      optimizer_state_(optimizer_state(optimizer, named_parameters(module))) {
  require_own_parameters(parameters_, name_);
  require_whole(optimizer, name_);
  parallel::require_same_lines(options, "the options of " + name_, group_);
  const NamedTensors tensors = named_tensors(module);
  parallel::require_same_tensors(tensors, group_);
  const at::NoGradGuard no_grad;
  parallel::broadcast_replica(tensors, group_);
}

LocalSteps::~LocalSteps() = default;

std::string LocalSteps::label() const {
  std::string label = name_;
  return label.append(" after step ").append(std::to_string(steps_ + 1));
}

bool LocalSteps::step() {
  const at::NoGradGuard no_grad;
  bool all = false;
  const bool synchronized = synchronize_after(steps_, all);
  if (all) finish_all();
  ++steps_;
  in_sync_ = all;
  return synchronized;
}

void LocalSteps::synchronize() {
  const at::NoGradGuard no_grad;
  synchronize_all();
  finish_all();
  in_sync_ = true;
}

void LocalSteps::finish_all() { parallel::broadcast_replica(named_buffers(module_), group_); }

// --- State --------------------------------------------------------------------------------------

StateDict LocalSteps::state_dict() {
  StateDict state;
  state.values = {
      {"steps", steps_}, {"world_size", std::int64_t{group_.size()}}, {"in_sync", in_sync_}};
  const std::string own = rank_prefix(group_.rank());
  StateDict module = module_state_->state_dict();
  if (!in_sync_)
    for (auto& [name, tensor] : module.tensors) tensor.of_rank_0 = false;  // Each rank's counts.
  add(state, (in_sync_ ? "" : own) + module_prefix, std::move(module));
  add(state, own + optimizer_prefix, optimizer_state_->state_dict());
  return state;
}

StateRequest LocalSteps::wanted(const StateDict& saved) {
  const Prefixes prefixes = prefixes_in(saved, group_.rank());
  StateRequest request;
  add(request, prefixes.module, module_state_->wanted(part_of(saved, prefixes.module)));
  add(request, prefixes.optimizer, optimizer_state_->wanted(part_of(saved, prefixes.optimizer)));
  return request;
}

void LocalSteps::load_state_dict(StateDict state) {
  const Prefixes prefixes = prefixes_in(state, group_.rank());
  module_state_->load_state_dict(part_of(state, prefixes.module));
  optimizer_state_->load_state_dict(part_of(state, prefixes.optimizer));
  steps_ = value_of<std::int64_t>(state, "steps");
  in_sync_ = value_of<bool>(state, "in_sync");
}

}  // namespace lockstep
