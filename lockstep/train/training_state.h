// All that a training needs to go on as if it had never been interrupted, under names of the
// program's choice: the parts of its checkpoints.
//
//   lockstep::TrainingState state;
//   state.add("model", ddp);                           // Or the module, if there is no ddp.
//   state.add("optimizer", adam, *model);              // Plain, sharded or shared.
//   state.add("schedule", schedule);
//   state.add("sampler", sampler);
//   state.add("generators", lockstep::RandomGenerators(world));
//   state.add("best_accuracy", best_accuracy);         // A variable of the program.
//
// Lifetime: what was added outlives it, but for samplers and generators, which it copies.
// Thread safety: none.
// Errors: misuse for a name that is there already or is not one for a part (tensor/state.h).

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include <concepts>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/data/distributed_sampler.h"
#include "lockstep/parallel/replicate/data_parallel_base.h"
#include "lockstep/tensor/random_generators.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

// Of which a program's variable may be.
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

  // Parameters and buffers, under their names in the module.
  // Errors, when it is loaded: misuse for shared parameters: add the DistributedDataParallel.
  void add(const std::string& name, torch::nn::Module& module);

  // Those of its module; shared ones are loaded by rank 0 for all.
  void add(const std::string& name, DataParallelBase& ddp);

  // State and options; parameters have their names in `module`. Errors: misuse for a parameter that
  // is not the module's; unsupported, naming it, for an optimizer but SGD, Adam, AdamW, Adagrad,
  // RMSprop and what derives from these.
  void add(const std::string& name, torch::optim::Optimizer& optimizer,
           const torch::nn::Module& module);

  // How many steps it has made. Learning rates are the optimizer's.
  void add(const std::string& name, torch::optim::LRScheduler& schedule);
  void add(const std::string& name, torch::optim::ReduceLROnPlateauScheduler& schedule);

  // Epoch and offset, which follow from what the program consume()s.
  void add(const std::string& name, const DistributedSampler& sampler);

  void add(const std::string& name, const RandomGenerators& generators);

  // A variable of the program, equal on all ranks: a bool, an integer, a float or double, a text;
  // or a tensor, whose values are copied into it. Saved as `value`.
  // Errors, when it is loaded: misuse for another kind of value, an integer or float that does not
  // fit the variable, and a tensor of another type or shape.
  template <VariableType T>
  void add(const std::string& name, T& value) {
    add_value(name, value);
  }
  void add(const std::string& name, at::Tensor& tensor);

  // What the program itself describes: the state of a communication hook, say.
  void add(const std::string& name, Stateful& state);

  // In the order in which they were added.
  const NamedStates& parts() const { return parts_; }
  operator const NamedStates&() const { return parts_; }  // For Checkpointer.

 private:
  template <class T>
  void add_value(const std::string& name, T& value);
  void keep(const std::string& name, std::unique_ptr<Stateful> state);

  std::vector<std::unique_ptr<Stateful>> owned_;
  NamedStates parts_;
};

}  // namespace lockstep
