// Trains a model of which the ranks of a host together have one copy: of weights, gradients and
// optimizer state, as ZeRO's stage 3 and PyTorch's FSDP do across memories of their own.
//
//   lockstep::FullyShardedDataParallel fsdp(gpt, world, {.units = {"transformer.h.*"}});
//   lockstep::FullyShardedOptimizer<lockstep::AdamW> adamw(fsdp, gpt->parameters(),
//                                                          torch::optim::AdamWOptions(3e-4));
//   ...
//   adamw.zero_grad();
//   loss_of(fsdp(batch.data), batch.target).backward();  // Each unit's mean, cut as it comes.
//   adamw.clip_grad_norm_(1.0);
//   adamw.step();
//
// Weights lie once in memory that all ranks of the host have mapped, so nothing is gathered, and a
// parameter can be read at any time. A unit is a list of parameters whose gradients are averaged
// together in backward(), as soon as all of them have come: each rank gets the mean of the elements
// that it steps, and the whole gradients are free. So a rank has the gradients of about two units,
// and 1 / world.size() of all others. With Adam, weights, gradients and state take 16 bytes a float
// parameter, once per host. Units are averaged in the order in which the first pass completed them,
// so a unit of which a pass leaves a parameter out holds up those behind it until the pass ends.
//
// After backward(), `.grad` is undefined: the means are the optimizer's, which adds those of
// several passes. They are gone after its step() and its zero_grad(), but not after the module's.
// Passes under no_sync() leave `.grad` on this rank, to which the next pass adds. Clip with the
// optimizer's clip_grad_norm_().
//
// On several hosts each rank keeps a slice of every unit's weights. A unit is gathered when an
// operator of LibTorch touches one of its parameters, in forward() or backward(): once per host, in
// memory that the host's ranks share. The next unit, as the last pass had it, is gathered
// meanwhile. A host has few units at a time (resident_units), so the model may be larger than any
// host's memory. All ranks call the same parameters in the same order. Outside of a pass, weights
// are not there: with_gathered() lends them, edit_parameters() changes them. Evaluation goes
// through this class, too, on all ranks.
//
// Within edit_parameters() and initialize() units come to rank 0 in the same way, in any order, and
// go back to all ranks with their changes when others take their slots. So rank 0 has no more than
// its slices and its host's resident_units units, besides what the function itself makes. An
// operator uses at most resident_units units. Memory that is used without an operator, by
// data_ptr(), is there from an operator on that parameter until one on another unit. The function
// calls operators on one thread. A tensor of initialize(make) that is a part of a larger one is
// copied when the whole module is made.
//
// With param_type, such as bfloat16, forward() and backward() use parameters of that type, and the
// optimizer steps masters of the original type, of which each rank has its fragments. Checkpoints
// have the masters. Passes under no_sync() add up gradients in param_type.
//
// With `offload`, the module computes on a device, such as local_device(), whose memory has
// resident_units units. Each comes from the host's memory when an operator touches it, and
// gradients go back there; the optimizer steps on the CPU. So nothing is gathered between the
// devices of a host. Tested with a stand-in for the device, and not run on one yet.
//
// With `shard`, only the ranks of that group have one copy together; the others have further
// copies, and gradients are averaged over all (PyTorch's HSDP). For a copy on each host:
//   lockstep::DeviceMesh mesh(world, {{"replicas", 2}, {"shard", -1}});
//   FullyShardedDataParallel fsdp(gpt, world, {.shard = mesh["shard"]});
//
// If the number of ranks is a power of two, weights equal those of DistributedDataParallel bit for
// bit, except for clipping, whose norm is summed in another order, and for several averaged passes
// before a step: here their means are added, as in PyTorch's FSDP.
//
// As with the option share_parameters of DistributedDataParallel, only edit_parameters() may write
// to parameters, besides the optimizer. All that is said there of forward(), Errors and exceptions
// holds here, except that an exception in backward() ends the group on several hosts, as units
// cannot come any more. register_comm_hook(), shard_gradients(), join() and train_pieces() are
// unsupported.
//
// A module that is larger than a rank's memory is made on the meta device (tensor/on_meta.h).
//
// Thread safety: none; one training loop uses it.
// Errors: as DistributedDataParallel with share_parameters; mismatch if ranks have other options,
// or touch other units; misuse for a pattern of a unit that matches nothing, for a parameter that
// is used while it is not there, and from the second backward() on for one that has a gradient and
// is in no FullyShardedOptimizer; unsupported if hosts have different numbers of ranks.

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
#include "lockstep/parallel/one_copy/shared_optimizer.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"

namespace lockstep::parallel {

struct FullyShardedModule;
class ShardedUnits;

}  // namespace lockstep::parallel

namespace lockstep {

struct FullyShardedOptions {
  // Patterns of modules' names, such as "transformer.h.*"; a star stands for one level. Each module
  // that matches is a unit, all other parameters together another one. By default the units are the
  // modules that a Sequential or a ModuleList numbers, the outermost ones.
  std::vector<std::string> units = {};

  // On several hosts: how many units a host has at a time, at least as many as one operator uses;
  // all of them, once gathered, until the step if parameters are not to be given up after
  // forward().
  std::size_t resident_units = 2;
  bool reshard_after_forward = true;

  // The type of float32 parameters in passes, if it is another one; and that in which their
  // gradients are averaged. The constructor has a float32 copy of them on each rank for a moment,
  // unless they are on the meta device: then load_weights() and checkpoints give the float32
  // masters their values, and initialize() gives values of `param_type`.
  std::optional<at::ScalarType> param_type = {};
  at::ScalarType reduce_type = at::kFloat;

  // The device on which this rank computes, while weights and optimizer state stay in the hosts'
  // memory. The module is in CPU memory; its buffers are moved.
  std::optional<c10::Device> offload = {};

  // Ranks of `group` that have one copy together: equally many for each copy. By default all.
  std::optional<ProcessGroup> shard = {};

  // As DistributedDataParallelOptions'. With overlap units are averaged on a thread of their own,
  // otherwise on autograd's.
  std::optional<bool> overlap = {};
  bool broadcast_buffers = true;
  bool find_unused_parameters = false;
  bool static_graph = false;
  GradientMean mean = GradientMean::over_ranks;
  NonFinite non_finite = NonFinite::fail;
};

// The part of FullyShardedDataParallel that does not depend on the type of its module.
class LOCKSTEP_API FullyShardedBase : public DataParallelBase {
 public:
  // Names of each unit's parameters, in the order in which backward() averages them.
  std::vector<std::vector<std::string>> units() const;
  const std::vector<std::string>& unit_patterns() const { return unit_patterns_; }

  // Collective: runs `use` on all ranks while parameters `names` are there, to be read only.
  // Errors: misuse for a name that no parameter has, and if `use` has written to one.
  void with_gathered(const std::vector<std::string>& names, const std::function<void()>& use);

  // The same of all parameters: each host has the whole model for the moment.
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
  const bool is_there_;  // All of each weight, in the host's memory.
  const std::shared_ptr<parallel::ShardedUnits> units_;
};

template <class Module>
class FullyShardedDataParallel : public FullyShardedBase {
 public:
  // Collective. All ranks get rank 0's weights.
  FullyShardedDataParallel(std::shared_ptr<Module> module, const ProcessGroup& group,
                           const FullyShardedOptions& options = {})
      : FullyShardedBase(module, group, options), module_(std::move(module)) {}

  // Takes the holders that TORCH_MODULE makes, including torch::nn::Sequential.
  FullyShardedDataParallel(const torch::nn::ModuleHolder<Module>& holder, const ProcessGroup& group,
                           const FullyShardedOptions& options = {})
      : FullyShardedDataParallel(holder.ptr(), group, options) {}

  // Calls the module's own forward(), with any arguments and result.
  template <class... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) {
    return call(*module_, std::forward<Arguments>(arguments)...);
  }

  const std::shared_ptr<Module>& module() const { return module_; }

 private:
  const std::shared_ptr<Module> module_;
};

// Each rank steps its fragments of the parameters: an elementwise optimizer, such as
// lockstep::AdamW (optimizers.h). Made with a FullyShardedDataParallel as SharedOptimizer is with a
// DistributedDataParallel. Parameters may be left out, and several optimizers may share them.
template <class Inner>
using FullyShardedOptimizer = SharedOptimizer<Inner>;

}  // namespace lockstep
