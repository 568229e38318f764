// One rank's replica of a module, and how it stays equal to the other ranks'.
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
  // Collective: makes the parameters of `module`, with rank 0's values, those of a store. Those on
  // the meta device get memory, and no values.
  using MakeStore = std::function<std::shared_ptr<ParameterStore>(const torch::nn::Module& module)>;

  // Collective: all ranks get rank 0's parameters and buffers. Those on the meta device get memory,
  // if parameters are shared, and no values before initialize(). With the option share_parameters,
  // `make_store` may say how they are shared; by default, the ranks are on one host.
  // Errors: mismatch if the ranks' modules differ; unsupported for parameters on several devices,
  // and for those that cannot be shared; misuse for those that another module's ranks share.
  ModuleReplica(std::shared_ptr<torch::nn::Module> module, const ProcessGroup& group,
                const DistributedDataParallelOptions& options, const MakeStore& make_store = {});

  const torch::nn::Module& module() const { return *module_; }
  const ProcessGroup& group() const { return group_; }

  // All parameters but experts that are cut over ranks, whose gradients are means already.
  NamedTensors averaged_parameters() const;

  // Null if parameters are this rank's own.
  const std::shared_ptr<ParameterStore>& shared() const { return shared_; }

  // named_tensors() of the module, where shared parameters are those in the hosts' memory
  // (ParameterStore::on_host()).
  NamedTensors tensors_on_host() const;

  bool is_torn() const;

  // Before forward(). Collective if buffers are due: as in PyTorch, they are not synchronised in
  // the first forward() after one that is not `synchronized`, so that only the first batch of an
  // evaluation is collective. Errors: as ParameterStore::require_intact(); misuse before
  // initialize().
  void require_intact() const;
  void before_forward(bool synchronized);

  // How the module was changed so that replicas would differ (RecordedParameters); empty if it was
  // not.
  std::string change() const { return recorded_.change_in(*module_); }

  // After a forward() without gradients, which no backward() follows.
  void after_evaluation() const noexcept;

  // A checkpoint has given all values.
  void note_values() { without_value_.clear(); }

  // While set, every broadcast of buffers is announced to ranks that have no input left; null ends
  // it.
  void set_join(Join* join) { join_ = join; }

  // Collective: buffers, or all that is kept equal, become those of rank `root`.
  void broadcast_buffers(int root) const;
  void become(int root);

  // Collective: as DistributedDataParallel::edit_parameters().
  void edit(const std::function<void()>& change) { edit("edit_parameters()", change); }

  // Collective: edit() by a `change` that gives values to all tensors. Generators that were equal
  // to rank 0's remain equal to it. Errors: misuse unless parameters are shared.
  void initialize(const std::function<void()>& change);

  // The name of a tensor without a value; empty if there is none.
  const std::string& without_value() const { return without_value_; }

 private:
  void edit(std::string_view call, const std::function<void()>& change);

  const std::shared_ptr<torch::nn::Module> module_;
  const ProcessGroup group_;
  const bool broadcasts_buffers_;  // Before forward().
  std::string without_value_;      // The first tensor that had none on the meta device.
  const std::shared_ptr<ParameterStore> shared_;
  const RecordedParameters recorded_;
  Join* join_ = nullptr;
  bool buffers_are_due_ = true;
  bool is_editing_ = false;
};

}  // namespace lockstep::parallel
