// A rank's replica of a module. Parameters are its own or shared (ParameterStore).
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
  // Collective: moves parameters, with rank 0's values, to a ParameterStore. Those on the meta
  // device become zero.
  using MakeStore = std::function<std::shared_ptr<ParameterStore>(const torch::nn::Module& module)>;

  // Collective: all ranks get rank 0's parameters and buffers. With share_parameters, `make_store`
  // makes the store, by default SharedParameters.
  // Errors: mismatch if modules differ. With share_parameters, also the store's; otherwise
  // unsupported for several devices, and misuse for tensors on meta or in shared memory.
  ModuleReplica(std::shared_ptr<torch::nn::Module> module, const ProcessGroup& group,
                const DistributedDataParallelOptions& options, const MakeStore& make_store = {});

  const torch::nn::Module& module() const { return *module_; }
  const ProcessGroup& group() const { return group_; }

  // Without experts that are cut over ranks.
  NamedTensors averaged_parameters() const;

  // Null if parameters are this rank's own.
  const std::shared_ptr<ParameterStore>& shared() const { return shared_; }

  // named_tensors(), with ParameterStore::on_host().
  NamedTensors tensors_on_host() const;

  bool is_partially_updated() const;

  // Before forward(). If buffers are broadcast, collective at first and after a `synchronized`
  // forward(), as in PyTorch. No forward() of an evaluation is `synchronized`, so at most its first
  // batch is collective.
  // Errors: as ParameterStore::require_intact(); misuse while a tensor has no value.
  void require_intact() const;
  void before_forward(bool synchronized);

  // As RecordedParameters::change_in().
  std::string change() const { return recorded_.change_in(*module_); }

  // After a forward() without gradients.
  void after_evaluation() const noexcept;

  // A checkpoint has set all values.
  void note_values() { without_value_.clear(); }

  // While set, broadcasts of buffers are announced to joined ranks.
  void set_join(Join* join) { join_ = join; }

  // Collective: copies buffers, or parameters and broadcast buffers, from rank `root`.
  void broadcast_buffers(int root) const;
  void become(int root);

  // Collective: as DistributedDataParallel::edit_parameters().
  void edit(const std::function<void()>& change) { edit("edit_parameters()", change); }

  // Collective: edit() by a `change` that sets all tensors. Generators equal to rank 0's remain
  // equal. Errors: misuse unless parameters are shared.
  void initialize(const std::function<void()>& change);

  // Empty if all tensors have values.
  const std::string& without_value() const { return without_value_; }

 private:
  void edit(std::string_view call, const std::function<void()>& change);

  const std::shared_ptr<torch::nn::Module> module_;
  const ProcessGroup group_;
  const bool broadcasts_buffers_;  // Before forward().
  std::string without_value_;      // The first tensor without a value.
  const std::shared_ptr<ParameterStore> shared_;
  const RecordedParameters recorded_;
  Join* join_ = nullptr;
  bool buffers_are_due_ = true;
  bool is_editing_ = false;
};

}  // namespace lockstep::parallel
