// Fully sharded training, like ZeRO stage 3 and PyTorch's FSDP: ranks together hold one set of
// weights, gradients and optimizer state (docs/guide/fully-sharded.md).
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
// backward() aborts the group. Also mismatch if ranks differ in options or, across hosts, in the
// order in which they use units. Unsupported if hosts have different numbers of ranks. Misuse for a
// pattern without a trained parameter, and for use of a parameter that is not gathered. From the
// second averaged pass on, misuse for a parameter with a gradient but without a
// FullyShardedOptimizer.

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
  // parameters are one more. Default: outermost numbered modules, as in a ModuleList.
  std::vector<std::string> units = {};

  // Across hosts, or with offload: gathered units in a host's or device's memory at a time. One
  // operator may use at most this many.
  std::size_t resident_units = 2;
  // Across hosts, or with offload: whether gathered units may be freed before the step. If false,
  // each stays in memory until then.
  bool reshard_after_forward = true;

  // The type of float32 parameters in forward() and backward(). The optimizer then steps float32
  // masters, divided among the ranks; checkpoints have the masters. Passes under no_sync() add
  // gradients in this type. The constructor temporarily makes a float32 copy on each rank, unless
  // parameters are on meta. On meta, load_weights() and checkpoints set the masters; initialize()
  // gives them values rounded to `param_type`.
  std::optional<at::ScalarType> param_type = {};
  // The type in which gradients of `param_type` are averaged.
  at::ScalarType reduce_type = at::kFloat;

  // The device on which this rank computes, such as local_device(). It holds resident_units units.
  // The optimizer steps in the hosts' memory, which keeps weights and state. Parameters must be in
  // CPU memory or on meta; buffers are moved to the device.
  std::optional<c10::Device> offload = {};

  // Ranks that hold this rank's copy of the parameters together, equally many in each copy;
  // default: all. Gradients are averaged over all copies' ranks (PyTorch's HSDP). For a copy on
  // each host:
  //   lockstep::DeviceMesh mesh(world, {{"replicas", 2}, {"shard", -1}});
  //   FullyShardedDataParallel fsdp(gpt, world, {.shard = mesh["shard"]});
  std::optional<ProcessGroup> shard = {};

  // As DistributedDataParallelOptions'. With overlap, a separate thread averages gradients.
  std::optional<bool> overlap = {};
  bool broadcast_buffers = true;
  bool find_unused_parameters = false;
  bool static_graph = false;
  GradientMean mean = GradientMean::over_ranks;
  NonFinite non_finite = NonFinite::fail;
};

class LOCKSTEP_API FullyShardedBase : public DataParallelBase {
 public:
  using DataParallelBase::no_sync;

  // Names of trained parameters; units in reverse order of registration.
  std::vector<std::vector<std::string>> units() const;
  const std::vector<std::string>& unit_patterns() const { return unit_patterns_; }

  // Collective: runs `use` on all ranks while the parameters `names` are gathered.
  // Errors: misuse for a name without a parameter, and if `use` has written to a parameter.
  void with_gathered(const std::vector<std::string>& names, const std::function<void()>& use);

  // Each host, and with offload each device, temporarily holds the whole model.
  void with_gathered(const std::function<void()>& use);

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
  parallel::FullyShardedModule sharded_module();
  std::unique_ptr<HeldTensors> held_tensors() override;
  std::unique_ptr<Stateful> state() override;
  void change_values(const std::function<void(const std::function<void()>& change)>& act,
                     const std::function<void()>& change) override;

  const std::vector<std::string> unit_patterns_;
  const std::optional<ProcessGroup> replicas_;
  const bool has_masters_;
  const bool is_there_;  // The host's memory holds whole weights.
  const std::shared_ptr<parallel::ShardedUnits> units_;
};

// `.grad` is undefined after backward(): the optimizer holds the means, and adds those of several
// passes. The optimizer's step() and zero_grad() drop means; the module's zero_grad() does not.
// Passes under no_sync() leave `.grad` on this rank, for the next averaged pass.
//
// Only the optimizer, load_weights(), checkpoints, edit_parameters() and initialize() may write to
// parameters. Across hosts, or with offload, the last two write by operators on one thread. Memory
// from data_ptr() is then valid from an operator on that parameter until one on another unit. At
// its end, initialize(make) copies parameters made as views of larger tensors.
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

// Each rank steps its slice of each unit's parameters. `Inner` is elementwise, such as
// lockstep::AdamW, or a LayerwiseOptimizer. Several optimizers may divide the parameters.
template <class Inner>
using FullyShardedOptimizer = SharedOptimizer<Inner>;

}  // namespace lockstep
