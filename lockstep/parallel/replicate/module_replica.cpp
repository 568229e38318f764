// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/replicate/module_replica.h"

#include <ATen/core/grad_mode.h>

#include <exception>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/parallel/gradients/features.h"
#include "lockstep/parallel/gradients/gradient_hook.h"
#include "lockstep/parallel/gradients/join.h"
#include "lockstep/parallel/replicate/own_experts.h"
#include "lockstep/parallel/replicate/replicas.h"
#include "lockstep/parallel/replicate/shared_parameters.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep::parallel {
namespace {

// Before the parameters get other memory, as the other one's gradients would not fit any longer.
void require_no_others(const NamedTensors& parameters) {
  for (const auto& [name, parameter] : parameters)
    if (GradientHook::is_on(parameter)) Features::refuse_common_parameters(name);
}

// After another DistributedDataParallel, which may be gone, has shared them.
void require_own_memory(const NamedTensors& parameters) {
  for (const auto& [name, parameter] : parameters)
    require(!lies_in_shared_block(parameter), [&, &name = name] {
      return "parameter " + name +
             " lies in memory that all ranks share: give each rank a copy with set_data(clone()), "
             "or "
             "set share_parameters";
    });
}

// Makes the replicas equal, and shares the parameters if that is asked for.
std::shared_ptr<ParameterStore> replicate(const torch::nn::Module& module,
                                          const ProcessGroup& group, bool share_parameters,
                                          const ModuleReplica::MakeStore& make_store) {
  const NamedTensors parameters = named_parameters(module);
  require_same_parts(without_experts(parameters, module), group);
  require_same_tensors(named_tensors(module), group);
  require_one_device(parameters);
  if (!share_parameters) {
    require_own_memory(parameters);
    require_all_ranks_of_experts(module, group);
    broadcast_replica(without_experts(named_tensors(module), module), group);
    broadcast_experts(module);
    return nullptr;
  }
  require_no_others(parameters);
  broadcast_replica(named_buffers(module), group);
  return make_store ? make_store(module) : std::make_shared<SharedParameters>(parameters, group);
}

}  // namespace

ModuleReplica::ModuleReplica(std::shared_ptr<torch::nn::Module> module, const ProcessGroup& group,
                             const DistributedDataParallelOptions& options,
                             const MakeStore& make_store)
    : module_(std::move(module)),
      group_(group),
      broadcasts_buffers_(options.broadcast_buffers && options.deterministic == 0),
      shared_(replicate(*module_, group, options.share_parameters, make_store)) {}

bool ModuleReplica::is_torn() const { return shared_ != nullptr && shared_->is_torn(); }

NamedTensors ModuleReplica::averaged_parameters() const {
  return without_experts(named_parameters(*module_), *module_);
}

void ModuleReplica::require_intact() const {
  if (shared_ != nullptr) shared_->require_intact();
}

void ModuleReplica::after_evaluation() const noexcept {
  if (shared_ != nullptr) shared_->end_pass();
}

void ModuleReplica::before_forward(bool synchronized) {
  if (shared_ != nullptr) shared_->begin_pass();
  if (!std::exchange(buffers_are_due_, synchronized) || !broadcasts_buffers_) return;
  if (named_buffers(*module_).empty()) return;
  if (join_ == nullptr) return broadcast_buffers(/*root=*/0);
  join_->exchange(Join::Step::broadcast_buffers);
  broadcast_buffers(join_->largest_active_rank());
}

void ModuleReplica::broadcast_buffers(int root) const {
  broadcast_replica(named_buffers(*module_), group_, root);  // A user may have exchanged them.
}

void ModuleReplica::become(int root) {
  broadcast_replica(broadcasts_buffers_ ? named_tensors(*module_) : named_parameters(*module_),
                    group_, root);
  buffers_are_due_ = true;
}

void ModuleReplica::edit(const std::function<void()>& change) {
  if (has_experts(*module_))
    throw Error(Fault::unsupported,
                "edit_parameters() of a module whose experts are cut over ranks: it would change "
                "those of rank 0 alone");
  const auto without_gradients = [&] {
    const at::NoGradGuard no_grad;
    change();
  };
  const std::exception_ptr error =
      shared_ != nullptr ? shared_->edit(without_gradients)
                         : attempt_on_rank_0(group_, "edit_parameters()", without_gradients);
  broadcast_replica(shared_ != nullptr ? named_buffers(*module_) : named_tensors(*module_), group_);
  if (error) std::rethrow_exception(error);
}

}  // namespace lockstep::parallel
