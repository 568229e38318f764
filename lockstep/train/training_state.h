// The complete state of a training, for resuming it as if it had not been interrupted
// (docs/guide/checkpoints.md). Its entries are the parts of the checkpoints.
//
//   lockstep::TrainingState state;
//   state.add("model", ddp);               // Or the module.
//   state.add("optimizer", adam, *model);  // Plain, sharded or shared.
//   state.add("sampler", sampler);
//   state.add("generators", lockstep::RandomGenerators(world));
//   checkpoints.resume(state);
//
// Lifetime: the added objects outlive it; samplers and generators are copied. Thread safety: none.
// Errors: misuse for a name that is already used or is not valid for a part (tensor/state.h).

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

class LRScheduler;
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

  // Adds parameters and buffers, under their names in the module. Errors: loading throws misuse for
  // shared parameters: add the DistributedDataParallel instead.
  void add(const std::string& name, torch::nn::Module& module);
  void add(const std::string& name, const torch::jit::Module& script);

  // Adds those of ddp's module. Each rank reads a part of shared parameters.
  void add(const std::string& name, DataParallelBase& ddp);

  // Adds state and options; parameters have their names in `module`. Errors: misuse for a parameter
  // of another module; unsupported for an optimizer that optimizer_state() does not support.
  void add(const std::string& name, torch::optim::Optimizer& optimizer,
           const torch::nn::Module& module);

  // Adds an optimizer of pipeline.parameters(), under the names of the whole model.
  void add(const std::string& name, torch::optim::Optimizer& optimizer, const Pipeline& pipeline);

  // Adds the whole state of a schedule of optim/schedules, or the number of steps of another one.
  // Learning rates belong to the optimizer.
  void add(const std::string& name, LRScheduler& schedule);
  void add(const std::string& name, torch::optim::LRScheduler& schedule);
  void add(const std::string& name, torch::optim::ReduceLROnPlateauScheduler& schedule);

  // Adds epoch and offset, which depend on the program's calls of consume().
  void add(const std::string& name, const DistributedSampler& sampler);

  void add(const std::string& name, const RandomGenerators& generators);

  // Adds a variable of the program, equal on all ranks: a bool, number, text, or tensor. Loading
  // copies the value, saved as `value`, into it. Errors: loading throws misuse for another kind of
  // value, a tensor of another type or shape, and a number that does not fit.
  template <VariableType T>
  void add(const std::string& name, T& value) {
    add_value(name, value);
  }
  void add(const std::string& name, at::Tensor& tensor);

  // Adds a state that the program describes itself, such as a communication hook's.
  void add(const std::string& name, Stateful& state);

  const NamedStates& parts() const { return parts_; }
  operator const NamedStates&() const { return parts_; }  // For Checkpointer.

 private:
  template <class T>
  void add_value(const std::string& name, T& value);
  void keep(const std::string& name, std::unique_ptr<Stateful> state);

  std::vector<std::unique_ptr<Stateful>> owned_;
  NamedStates parts_;
};

// Collective: load_weights() and save_weights() of the state of ddp's module
// (lockstep/checkpoint/weights.h). A module that was constructed on the meta device
// (lockstep/tensor/on_meta.h) needs no other values.
LOCKSTEP_API LoadedWeights load_weights(DataParallelBase& ddp, const std::filesystem::path& path,
                                        const LoadWeightsOptions& options = {});
LOCKSTEP_API void save_weights(DataParallelBase& ddp, const std::filesystem::path& folder,
                               const SaveWeightsOptions& options = {});

}  // namespace lockstep
