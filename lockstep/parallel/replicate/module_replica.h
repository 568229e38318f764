// One rank's replica of a module. Parameters are its own or shared (ParameterStore).
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

  // Collective: all ranks get rank 0's parameters and buffers. Shared parameters on the meta device
  // have no values before initialize(). With share_parameters, `make_store` makes the store, by
  // default SharedParameters.
  // Errors: mismatch if the ranks' modules differ. unsupported for parameters on several devices,
  // or that cannot be shared. misuse for those that another module shares.
  ModuleReplica(std::shared_ptr<torch::nn::Module> module, const ProcessGroup& group,
                const DistributedDataParallelOptions& options, const MakeStore& make_store = {});

  const torch::nn::Module& module() const { return *module_; }
  const ProcessGroup& group() const { return group_; }

  // Without experts that are cut over ranks.
  NamedTensors averaged_parameters() const;

  // Null if parameters are this rank's own.
  const std::shared_ptr<ParameterStore>& shared() const { return shared_; }

  // named_tensors() of the module, with shared parameters as from ParameterStore::on_host().
  NamedTensors tensors_on_host() const;

  bool is_partially_updated() const;

  // Call these before forward(). Collective if buffers are due: not in the first forward() after
  // one that is not `synchronized`, as in PyTorch. So only the first batch of an evaluation is
  // collective.
  // Errors: as ParameterStore::require_intact(); misuse before initialize().
  void require_intact() const;
  void before_forward(bool synchronized);

  // A change that would make replicas differ (RecordedParameters); empty if there is none.
  std::string change() const { return recorded_.change_in(*module_); }

  // After a forward() without gradients.
  void after_evaluation() const noexcept;

  // A checkpoint has set all values.
  void note_values() { without_value_.clear(); }

  // While set, broadcasts of buffers are announced to joined ranks.
  void set_join(Join* join) { join_ = join; }

  // Collective: copies buffers, or all replicated tensors, from rank `root`.
  void broadcast_buffers(int root) const;
  void become(int root);

  // Collective: as DistributedDataParallel::edit_parameters().
  void edit(const std::function<void()>& change) { edit("edit_parameters()", change); }

  // Collective: edit() by a `change` that sets all tensors. Generators equal to rank 0's remain
  // equal to it. Errors: misuse unless parameters are shared.
  void initialize(const std::function<void()>& change);

  // Empty if all tensors have values.
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
