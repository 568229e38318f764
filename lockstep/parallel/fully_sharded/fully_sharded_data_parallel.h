// Fully sharded training, like ZeRO stage 3 and PyTorch's FSDP. The ranks of a host together hold
// one set of weights, gradients and optimizer state (docs/guide/fully-sharded.md).
//
//   lockstep::FullyShardedDataParallel fsdp(gpt, world, {.units = {"transformer.h.*"}});
//   lockstep::FullyShardedOptimizer<lockstep::AdamW> adamw(fsdp, gpt->parameters(),
//                                                          torch::optim::AdamWOptions(3e-4));
//   adamw.zero_grad();
//   loss_of(fsdp(batch.data), batch.target).backward();  // Averages each unit's gradients.
//   adamw.step();
//
// Thread safety: none.
// Errors: as DistributedDataParallel with share_parameters, but across hosts, an exception in
// backward() ends the group. In addition, mismatch if ranks have other options or use other units;
// unsupported if hosts have different numbers of ranks. Misuse for a unit's pattern that matches no
// module, and for a parameter that is used while it is not gathered. From the second backward() on,
// misuse for a parameter with a gradient but without a FullyShardedOptimizer.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/parallel/shared_parameters/shared_optimizer.h"

namespace lockstep::parallel {

struct FullyShardedModule;
class ShardedUnits;

}  // namespace lockstep::parallel

namespace lockstep {

struct FullyShardedOptions {
  // Patterns of module names; a star matches one level. Each matching module is a unit; all other
  // parameters are one more. Default: the outermost elements of Sequentials and ModuleLists.
  std::vector<std::string> units = {};

  // Across hosts: units that a host holds at a time, at least as many as one operator uses.
  std::size_t resident_units = 2;
  // Across hosts: whether gathered units may be freed after forward(). If false, all stay in memory
  // until the step.
  bool reshard_after_forward = true;

  // The type of float32 parameters in forward() and backward(). The optimizer then steps float32
  // masters, of which each rank has its fragments; checkpoints have the masters. Passes under
  // no_sync() add gradients in this type. The constructor temporarily makes a float32 copy on each
  // rank, unless parameters are on the meta device. Then load_weights() and checkpoints set the
  // masters, and initialize() gives values of `param_type`.
  std::optional<at::ScalarType> param_type = {};
  // The type in which these parameters' gradients are averaged.
  at::ScalarType reduce_type = at::kFloat;

  // The device on which this rank computes, such as local_device(), which holds resident_units
  // units. Weights and optimizer state stay in the hosts' memory, where the optimizer steps. The
  // module is in CPU memory; its buffers are moved. Tested on one GPU (docs/status.md).
  std::optional<c10::Device> offload = {};

  // Ranks of `group` that hold the parameters together, equally many in each copy; default: all.
  // Gradients are averaged over all copies (PyTorch's HSDP). For a copy on each host:
  //   lockstep::DeviceMesh mesh(world, {{"replicas", 2}, {"shard", -1}});
  //   FullyShardedDataParallel fsdp(gpt, world, {.shard = mesh["shard"]});
  std::optional<ProcessGroup> shard = {};

  // As DistributedDataParallelOptions'. With overlap, a separate thread averages units.
  std::optional<bool> overlap = {};
  bool broadcast_buffers = true;
  bool find_unused_parameters = false;
  bool static_graph = false;
  GradientMean mean = GradientMean::over_ranks;
  NonFinite non_finite = NonFinite::fail;
};

// The part that does not depend on the type of the module.
class LOCKSTEP_API FullyShardedBase : public DataParallelBase {
 public:
  // Names of each unit's parameters, in the order of averaging in backward().
  std::vector<std::vector<std::string>> units() const;
  const std::vector<std::string>& unit_patterns() const { return unit_patterns_; }

  // Collective: runs `use` on all ranks while the parameters `names` are gathered.
  // Errors: misuse for a name without a parameter, and if `use` has written to a parameter.
  void with_gathered(const std::vector<std::string>& names, const std::function<void()>& use);

  // The same for all parameters: each host temporarily holds the whole model.
  void with_gathered(const std::function<void()>& use);

  void edit_parameters(const std::function<void()>& change) override;

 protected:
  // Collective.
  FullyShardedBase(std::shared_ptr<torch::nn::Module> module, const ProcessGroup& group,
                   const FullyShardedOptions& options);
  ~FullyShardedBase() override;

 private:
  struct Setup;

  FullyShardedBase(std::shared_ptr<torch::nn::Module> module, const ProcessGroup& group,
                   const FullyShardedOptions& options, const Setup& setup);

  std::shared_ptr<parallel::SteppedSlices> slices_of(
      const std::vector<at::Tensor>& parameters) const override;
  const ProcessGroup& stepping_group() const override { return shard_; }
  parallel::FullyShardedModule sharded_module(const std::function<void()>& loaded);
  std::unique_ptr<parallel::HeldTensors> held_tensors() override;
  std::unique_ptr<Stateful> state_of_parts(const std::function<void()>& loaded) override;
  void initialize_by(const std::function<void()>& change) override;
  void follow(const std::function<void(const std::function<void()>& change)>& act,
              const std::function<void()>& change);

  const std::vector<std::string> unit_patterns_;
  const ProcessGroup shard_;
  const std::optional<ProcessGroup> replicas_;
  const bool has_masters_;
  const bool is_there_;  // Whether the host's memory holds whole weights.
  const std::shared_ptr<parallel::ShardedUnits> units_;
};

// Calls forward() of a module whose parameters the ranks hold together.
//
// `.grad` is undefined after backward(): the optimizer holds the means, and adds those of several
// passes. Its step() and zero_grad() drop them; the module's zero_grad() does not. Passes under
// no_sync() leave `.grad` on this rank, and the next averaged pass includes it.
//
// Only the optimizer, edit_parameters() and initialize() may write to parameters, by operators on
// one thread. Across hosts, an operator uses at most resident_units units. Memory from data_ptr()
// is valid from an operator on that parameter until one on another unit. initialize(make) copies a
// tensor that is a part of a larger one when the whole module is made.
//
// register_comm_hook(), shard_gradients(), join() and train_microbatches() are unsupported.
template <class Module>
class FullyShardedDataParallel : public FullyShardedBase {
 public:
  // Collective. All ranks get rank 0's weights.
  FullyShardedDataParallel(std::shared_ptr<Module> module, const ProcessGroup& group,
                           const FullyShardedOptions& options = {})
      : FullyShardedBase(module, group, options), module_(std::move(module)) {}

  FullyShardedDataParallel(const torch::nn::ModuleHolder<Module>& holder, const ProcessGroup& group,
                           const FullyShardedOptions& options = {})
      : FullyShardedDataParallel(holder.ptr(), group, options) {}

  template <class... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) {
    return call(*module_, std::forward<Arguments>(arguments)...);
  }

  const std::shared_ptr<Module>& module() const { return module_; }

 private:
  const std::shared_ptr<Module> module_;
};

// Each rank steps its fragments with an elementwise optimizer, such as lockstep::AdamW. Constructed
// with a FullyShardedDataParallel as SharedOptimizer is with a DistributedDataParallel. Several
// optimizers may divide the parameters, or leave some out.
template <class Inner>
using FullyShardedOptimizer = SharedOptimizer<Inner>;

}  // namespace lockstep
