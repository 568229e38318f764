// The same module on every rank, kept equal by averaging gradients in backward().
//
//   auto net = std::make_shared<Net>();                     // any module with a forward()
//   lockstep::DistributedDataParallel ddp(net, world);      // everybody has rank 0's weights now
//   auto loss = torch::nll_loss(ddp(batch.data), batch.target);
//   loss.backward();                                        // gradients are averages over ranks
//
// Semantics are those of torch.nn.parallel.DistributedDataParallel 2.13: parameters and buffers
// are broadcast from rank 0 when it is made, buffers again before each training forward, and each
// gradient is scaled by 1 / world_size before all are summed. Parameter names gain no prefix: the
// module stays the user's own, and may be called directly when nothing is to be synchronised, in
// an evaluation say. After backward() `.grad` lies in memory of this class, which lives as long
// as the tensor does.
//
// Every parameter that requires a gradient must take part in each loss; if one does not,
// backward() throws an Error(misuse) that names it.
//
// Thread safety: none; one training loop uses it.
// Errors: mismatch when the ranks' modules differ; those of ProcessGroup.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <utility>

#include "lockstep/comm/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/reducer.h"
#include "lockstep/parallel/replicas.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

struct DistributedDataParallelOptions {
  // Whether buffers, such as the running mean of BatchNorm, become rank 0's before each training
  // forward. Without it they drift apart; with it each costs a broadcast.
  bool broadcast_buffers = true;
};

template <class Module>
class DistributedDataParallel {
 public:
  // While it lives, gradients accumulate on this rank alone: forward() calls made under it, and
  // their backward(), are not synchronised.
  class NoSync {
   public:
    explicit NoSync(bool& synchronize)
        : synchronize_(synchronize), before_(std::exchange(synchronize, false)) {}
    ~NoSync() { synchronize_ = before_; }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    bool& synchronize_;
    const bool before_;
  };

  // Collective.
  DistributedDataParallel(std::shared_ptr<Module> module, const ProcessGroup& group,
                          DistributedDataParallelOptions options = {})
      : module_(std::move(module)), group_(group), options_(options) {
    require(module_ != nullptr, "DistributedDataParallel: there is no module");
    require_same_tensors(named_tensors(*module_), group_);
    broadcast_replica(named_tensors(*module_), group_);
    reducer_ = std::make_unique<Reducer>(named_parameters(*module_), group_);
    buffers_ = named_buffers(*module_);
  }

  // Takes what TORCH_MODULE makes, torch::nn::Sequential among them.
  DistributedDataParallel(const torch::nn::ModuleHolder<Module>& holder, const ProcessGroup& group,
                          DistributedDataParallelOptions options = {})
      : DistributedDataParallel(holder.ptr(), group, options) {}

  // The module's own forward().
  template <class... Arguments>
  auto operator()(Arguments&&... arguments) {
    before_forward();
    return module_->forward(std::forward<Arguments>(arguments)...);
  }

  [[nodiscard]] NoSync no_sync() { return NoSync(synchronize_); }

  const std::shared_ptr<Module>& module() const { return module_; }

 private:
  void before_forward() {
    if (!torch::GradMode::is_enabled()) return;
    if (buffers_are_due_ && module_->is_training() && options_.broadcast_buffers)
      broadcast_replica(buffers_, group_);
    buffers_are_due_ = synchronize_;  // As PyTorch: not for the forward after one under no_sync.
    reducer_->prepare(synchronize_);
  }

  std::shared_ptr<Module> module_;
  ProcessGroup group_;
  DistributedDataParallelOptions options_;
  std::unique_ptr<Reducer> reducer_;
  NamedTensors buffers_;
  bool synchronize_ = true;
  bool buffers_are_due_ = true;
};

}  // namespace lockstep
