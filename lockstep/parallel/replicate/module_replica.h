// One rank's replica of a module, which is kept equal to the other ranks' replicas.
//
// Parameters are this rank's own, or all ranks of a host share them (SharedParameters). Buffers are
// always its own: they are broadcast before forward().
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/parallel/replicate/recorded_parameters.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

class Join;
class ParameterStore;

class ModuleReplica {
 public:
  // Collective: moves the parameters of `module`, with rank 0's values, to a store. Those on the
  // meta device get memory, but no values.
  using MakeStore = std::function<std::shared_ptr<ParameterStore>(const torch::nn::Module& module)>;

  // Collective: all ranks get rank 0's parameters and buffers. If parameters are shared, those on
  // the meta device get memory, but no values before initialize(). With the option
  // share_parameters, `make_store` makes the store; by default, the ranks are on one host.
  // Errors: mismatch if the ranks' modules differ; unsupported for parameters on several devices,
  // and for those that cannot be shared; misuse for those that another module shares.
  ModuleReplica(std::shared_ptr<torch::nn::Module> module, const ProcessGroup& group,
                const DistributedDataParallelOptions& options, const MakeStore& make_store = {});

  const torch::nn::Module& module() const { return *module_; }
  const ProcessGroup& group() const { return group_; }

  // All parameters except experts that are cut over ranks, whose gradients are already means.
  NamedTensors averaged_parameters() const;

  // Null if parameters are this rank's own.
  const std::shared_ptr<ParameterStore>& shared() const { return shared_; }

  // named_tensors() of the module, with shared parameters replaced by those in the hosts' memory
  // (ParameterStore::on_host()).
  NamedTensors tensors_on_host() const;

  bool is_partially_updated() const;

  // Call these before forward(). Collective if buffers are due. As in PyTorch, the first forward()
  // after one that is not `synchronized` does not synchronise buffers. So only the first batch of
  // an evaluation is collective.
  // Errors: as ParameterStore::require_intact(); misuse before initialize().
  void require_intact() const;
  void before_forward(bool synchronized);

  // Describes a change of the module that would make replicas differ (RecordedParameters), or is
  // empty.
  std::string change() const { return recorded_.change_in(*module_); }

  // Call it after a forward() without gradients, which no backward() follows.
  void after_evaluation() const noexcept;

  // Call it when a checkpoint has set all values.
  void note_values() { without_value_.clear(); }

  // While set, every broadcast of buffers is announced to ranks that have joined; null ends this.
  void set_join(Join* join) { join_ = join; }

  // Collective: copies buffers, or all replicated tensors, from rank `root`.
  void broadcast_buffers(int root) const;
  void become(int root);

  // Collective: as DistributedDataParallel::edit_parameters().
  void edit(const std::function<void()>& change) { edit("edit_parameters()", change); }

  // Collective: edit() by a `change` that sets the values of all tensors. Generators that were
  // equal to rank 0's remain equal to it. Errors: misuse unless parameters are shared.
  void initialize(const std::function<void()>& change);

  // The name of a tensor without a value; empty if there is none.
  const std::string& without_value() const { return without_value_; }

 private:
  void edit(std::string_view call, const std::function<void()>& change);

  const std::shared_ptr<torch::nn::Module> module_;
  const ProcessGroup group_;
  const bool broadcasts_buffers_;  // Before forward().
  std::string without_value_;      // The first tensor on the meta device without a value.
  const std::shared_ptr<ParameterStore> shared_;
  const RecordedParameters recorded_;
  Join* join_ = nullptr;
  bool buffers_are_due_ = true;
  bool is_editing_ = false;
};

}  // namespace lockstep::parallel
