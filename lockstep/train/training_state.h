// The complete state of a training: the named parts of a checkpoint
// (docs/guide/checkpoints.md).
//
//   lockstep::TrainingState state;
//   state.add("model", ddp);               // Or the module.
//   state.add("optimizer", adam, *model);  // Plain, sharded or shared.
//   state.add("sampler", sampler);
//   state.add("generators", lockstep::RandomGenerators(world));
//   checkpoints.resume(state);
//
// Lifetime: added objects must outlive it, except samplers and generators, which it copies. Thread
// safety: none. Errors: misuse for a name that is used or invalid (NamedStates, tensor/state.h).

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include <concepts>
#include <filesystem>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/checkpoint/weights.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/tensor/module_state.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

class Pipeline;

template <class T>
concept VariableType =
    std::same_as<T, std::remove_cv_t<T>> &&
    ((std::integral<T> && !std::same_as<T, wchar_t> && !std::same_as<T, char8_t> &&
      !std::same_as<T, char16_t> && !std::same_as<T, char32_t> && sizeof(T) <= 8) ||
     std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, std::string>);

class LOCKSTEP_API TrainingState {
 public:
  TrainingState();
  ~TrainingState();
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;

  // Adds parameters and buffers. Errors: as state_of(module). For shared parameters, add the
  // DistributedDataParallel instead.
  void add(const std::string& name, torch::nn::Module& module);
  void add(const std::string& name, const torch::jit::Module& script);

  // As ddp's module. Each rank reads a part of shared parameters.
  void add(const std::string& name, DataParallelBase& ddp);

  // Adds state and options; parameters have their names in `module`. Errors: misuse for a parameter
  // of another module; unsupported for an optimizer that state_of() does not support.
  void add(const std::string& name, torch::optim::Optimizer& optimizer,
           const torch::nn::Module& module);

  // For an optimizer of pipeline.parameters(): under the names of the whole model.
  void add(const std::string& name, torch::optim::Optimizer& optimizer, const Pipeline& pipeline);

  // Adds the whole state of a Stateful schedule, such as toolkit.h's, or of ReduceLROnPlateau; of
  // others, the number of steps. Learning rates belong to the optimizer.
  void add(const std::string& name, torch::optim::LRScheduler& schedule);
  template <std::derived_from<torch::optim::LRScheduler> T>
    requires std::derived_from<T, Stateful>
  void add(const std::string& name, T& schedule) {
    add(name, static_cast<Stateful&>(schedule));
  }
  void add(const std::string& name, torch::optim::ReduceLROnPlateauScheduler& schedule);

  // Adds DistributedSampler::state_dict(); its offset depends on consume().
  void add(const std::string& name, const DistributedSampler& sampler);

  void add(const std::string& name, const RandomGenerators& generators);

  // Adds a variable, equal on all ranks: a bool, number, text, or tensor, saved as `value`. Errors:
  // loading throws misuse for another kind of value, a tensor of another type or shape, and a
  // number that does not fit. Saving does for a number above int64 and an undefined tensor.
  template <VariableType T>
  void add(const std::string& name, T& value) {
    add_value(name, value);
  }
  void add(const std::string& name, at::Tensor& tensor);

  // Adds another state, such as a communication hook's.
  void add(const std::string& name, Stateful& state);

  const NamedStates& parts() const { return parts_; }
  operator const NamedStates&() const { return parts_; }  // For Checkpointer.

  // The first part whose tensors several ranks share; empty if there is none.
  const std::string& shared_part() const { return shared_part_; }

 private:
  template <class T>
  void add_value(const std::string& name, T& value);
  void keep(const std::string& name, std::unique_ptr<Stateful> state);

  std::vector<std::unique_ptr<Stateful>> owned_;
  NamedStates parts_;
  std::string shared_part_;
};

// Collective: load_weights() and save_weights() of ddp's module (lockstep/checkpoint/weights.h).
// Sets all values of a module constructed on meta (lockstep/tensor/on_meta.h).
LOCKSTEP_API LoadedWeights load_weights(DataParallelBase& ddp, const std::filesystem::path& path,
                                        const LoadWeightsOptions& options = {});
LOCKSTEP_API void save_weights(DataParallelBase& ddp, const std::filesystem::path& folder,
                               const SaveWeightsOptions& options = {});

}  // namespace lockstep
