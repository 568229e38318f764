// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/replicate/module_replica.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/ScopeExit.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"
#include "lockstep/parallel/gradients/features.h"
#include "lockstep/parallel/gradients/gradient_hook.h"
#include "lockstep/parallel/gradients/join.h"
#include "lockstep/parallel/replicate/own_experts.h"
#include "lockstep/parallel/replicate/replicas.h"
#include "lockstep/parallel/replicate/shared_parameters.h"
#include "lockstep/tensor/generator_states.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep::parallel {
namespace {

// Another DistributedDataParallel's gradients would not fit the new memory.
void require_no_others(const NamedTensors& parameters) {
  for (const auto& [name, parameter] : parameters)
    if (has_gradient_hook(parameter)) Features::refuse_common_parameters(name);
}

// Another DistributedDataParallel, even a destroyed one, may have shared them.
void require_own_memory(const NamedTensors& parameters) {
  for (const auto& [name, parameter] : parameters)
    require(!lies_in_shared_block(parameter), [&, &name = name] {
      return "parameter " + name +
             " lies in memory that all ranks share: give each rank a copy with set_data(clone()), "
             "or "
             "set share_parameters";
    });
}

std::string first_without_value(const torch::nn::Module& module) {
  for (const auto& [name, tensor] : named_tensors(module))
    if (tensor.is_meta()) return name;
  return {};
}

// Keeps generators equal to rank 0's, if equal before rank 0 draws for all.
class FollowingGenerator {
 public:
  // Collective.
  explicit FollowingGenerator(const ProcessGroup& group)
      : group_(group), is_equal_(of_rank_0() == own()) {}

  // Collective.
  void follow() const {
    const std::string state = of_rank_0();
    if (!is_equal_) return;
    at::Tensor bytes = at::empty({static_cast<std::int64_t>(state.size())}, at::kByte);
    std::memcpy(bytes.mutable_data_ptr(), state.data(), state.size());
    set_default_generator_state(bytes);
  }

 private:
  static std::string own() {
    const at::Tensor state = default_generator_state();
    return {static_cast<const char*>(state.const_data_ptr()), state.nbytes()};
  }
  std::string of_rank_0() const {
    return broadcast_bytes(own(), group_, 0, {.label = "random generator of rank 0"});
  }

  const ProcessGroup group_;
  const bool is_equal_;
};

std::shared_ptr<ParameterStore> replicate(const torch::nn::Module& module,
                                          const ProcessGroup& group, bool share_parameters,
                                          const ModuleReplica::MakeStore& make_store) {
  const NamedTensors parameters = named_parameters(module);
  require_same_parts(without_experts(parameters, module), group);
  require_same_tensors(named_tensors(module), group);
  if (!share_parameters) {
    require_values(named_tensors(module), "DistributedDataParallel");
    require_one_device(parameters);
    require_own_memory(parameters);
    require_all_ranks_of_experts(module, group);
    broadcast_replica(without_experts(named_tensors(module), module), group);
    broadcast_experts(module);
    return nullptr;
  }
  require_no_others(parameters);
  for (const auto& [name, buffer] : named_buffers(module))
    if (buffer.is_meta()) move_from_meta(buffer, at::zeros_like(buffer, at::kCPU));
  broadcast_replica(named_buffers(module), group);
  return make_store ? make_store(module) : std::make_shared<SharedParameters>(parameters, group);
}

}  // namespace

ModuleReplica::ModuleReplica(std::shared_ptr<torch::nn::Module> module, const ProcessGroup& group,
                             const DistributedDataParallelOptions& options,
                             const MakeStore& make_store)
    : module_(std::move(module)),
      group_(group),
      broadcasts_buffers_(options.broadcast_buffers),
      without_value_(first_without_value(*module_)),
      shared_(replicate(*module_, group, options.share_parameters, make_store)),
      recorded_(*module_, /*with_forms=*/shared_ == nullptr) {}

bool ModuleReplica::is_partially_updated() const {
  return shared_ != nullptr && shared_->is_partially_updated();
}

NamedTensors ModuleReplica::averaged_parameters() const {
  return without_experts(named_parameters(*module_), *module_);
}

NamedTensors ModuleReplica::tensors_on_host() const {
  NamedTensors tensors = named_parameters(*module_);
  if (shared_ != nullptr)
    for (auto& [name, parameter] : tensors) parameter = shared_->on_host(parameter);
  for (auto& buffer : named_buffers(*module_)) tensors.push_back(std::move(buffer));
  return tensors;
}

void ModuleReplica::require_intact() const {
  require(without_value_.empty(), [this] {
    return without_value_ +
           " has no value yet, as the module was made on the meta device: call initialize() or " +
           "load_weights(), or load a checkpoint";
  });
  if (shared_ != nullptr) shared_->require_intact();
}

void ModuleReplica::after_evaluation() const noexcept {
  if (shared_ != nullptr) shared_->end_evaluation();
}

void ModuleReplica::before_forward(bool synchronized) {
  if (shared_ != nullptr) shared_->begin_pass(at::GradMode::is_enabled());
  if (!std::exchange(buffers_are_due_, synchronized) || !broadcasts_buffers_) return;
  if (named_buffers(*module_).empty()) return;
  if (join_ == nullptr) return broadcast_buffers(/*root=*/0);
  join_->exchange(Join::Step::broadcast_buffers);
  broadcast_buffers(join_->largest_active_rank());
}

void ModuleReplica::broadcast_buffers(int root) const {
  broadcast_replica(named_buffers(*module_), group_, root);  // The program may replace them.
}

void ModuleReplica::become(int root) {
  broadcast_replica(broadcasts_buffers_ ? named_tensors(*module_) : named_parameters(*module_),
                    group_, root);
  buffers_are_due_ = true;
}

void ModuleReplica::edit(std::string_view call, const std::function<void()>& change) {
  if (has_experts(*module_))
    throw Error(Fault::unsupported,
                "edit_parameters() of a module whose experts are cut over ranks: it would change "
                "those of rank 0 alone");
  require(!is_editing_, "edit_parameters() and initialize() cannot be called within each other");
  is_editing_ = true;
  const auto ended = c10::make_scope_exit([this] { is_editing_ = false; });
  const auto without_gradients = [&] {
    const at::NoGradGuard no_grad;
    change();
  };
  const std::exception_ptr error = shared_ != nullptr
                                       ? shared_->edit(call, without_gradients)
                                       : attempt_on_rank_0(group_, call, without_gradients);
  broadcast_replica(shared_ != nullptr ? named_buffers(*module_) : named_tensors(*module_), group_);
  if (error) std::rethrow_exception(error);
}

void ModuleReplica::initialize(const std::function<void()>& change) {
  require(shared_ != nullptr,
          "initialize() is for parameters that all ranks of a host share: initialize the module "
          "before DistributedDataParallel is made");
  const FollowingGenerator generator(group_);
  edit("initialize()", change);
  generator.follow();
  without_value_.clear();
}

}  // namespace lockstep::parallel
