// The units of a fully sharded module: parameters whose gradients are averaged together. Each rank
// steps its fragments of them, and only it has their means. With masters, of a more precise type,
// it steps these and copies them into the fragments.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/parallel/shared_parameters/gradient_slices.h"
#include "lockstep/parallel/shared_parameters/host_groups.h"
#include "lockstep/parallel/shared_parameters/stepped_slices.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

class ParameterStore;

// Indices of parameters, and the name of their module.
struct Unit {
  std::string name;
  std::vector<std::size_t> parameters;
};

// Returns units in the order in which backward() usually completes them. Each module whose name
// matches a pattern is a unit; the first matching pattern counts. Without patterns, the numbered
// modules of each Sequential or ModuleList are the units. The others are one more unit.
// Errors: misuse for a pattern that matches no module with parameters.
std::vector<Unit> units_of(const NamedTensors& parameters,
                           const std::vector<std::string>& patterns);

// The elements of `values`, in any memory order, in a fragment of `parameter`, in CPU memory.
at::Tensor fragment_of_values(const at::Tensor& values, const Shard& shard,
                              const at::Tensor& parameter);

class ShardedUnits {
 public:
  // Ranks that hold the parameters together, and those with the same fragments in other copies.
  struct Ranks {
    HostGroups copy;
    std::optional<ProcessGroup> replicas = {};
  };

  // By TensorImpl, with the parameters' strides.
  using Masters = std::unordered_map<const void*, at::Tensor>;

  // Collective. The `parameters` are in `store`; those of `units` are averaged. `masters` are equal
  // on all ranks.
  ShardedUnits(const NamedTensors& parameters, const std::vector<Unit>& units,
               std::shared_ptr<ParameterStore> store, Ranks ranks, const Masters& masters = {},
               GradientConversion conversion = {});

  // By unit: its parameters.
  const BucketAssignment& units() const { return units_; }
  const std::vector<std::vector<std::string>>& parameter_names() const { return parameter_names_; }

  // Collective: this rank's means of a unit's `gradients`, in the order of its parameters. Missing
  // gradients count as zero. Errors name the unit.
  std::vector<at::Tensor> average(std::size_t unit, GradientSlices::Gradients gradients) const;

  // Adds means for parameters that are `used`.
  void add(std::size_t unit, const std::vector<at::Tensor>& means, const std::vector<bool>& used);

  void forget() noexcept;

  // Whether any rank's fragments have a gradient of this parameter.
  bool is_used(std::size_t parameter) const { return used_[parameter]; }
  void set_unused(std::size_t parameter) { used_[parameter] = false; }

  // Tensors are undefined on ranks that do not step the fragment.
  struct Fragment {
    Shard shard;             // `parameter` is the caller's.
    at::Tensor tensor = {};  // The stepped tensor: the master if there is one.
    at::Tensor stored = {};  // The elements of the parameter.

    void publish() const;
  };

  // Fragments of `parameter` on all ranks, and its index if it required a gradient. Errors: misuse
  // for a tensor that is not one of the parameters.
  const std::vector<Fragment>& fragments_of(const at::Tensor& parameter) const;
  std::optional<std::size_t> index_of(const at::Tensor& parameter) const;

  // The type in which it is stepped.
  at::ScalarType type_of(const at::Tensor& parameter) const;

  // Collective, after writes to parameters of the first copy. Updates other copies and masters.
  void follow_writes();

  // Collective: `write` writes to any fragments while no rank reads any.
  void write(const std::function<void()>& write);

  ParameterStore& store() const { return *store_; }
  const Ranks& ranks() const { return ranks_; }

  // Optimizers register the parameters that they step.
  void add_stepper(std::size_t parameter) { ++steppers_[parameter]; }
  void remove_stepper(std::size_t parameter) { --steppers_[parameter]; }

  // The first parameter with a gradient but no optimizer.
  std::optional<std::size_t> used_without_stepper() const;

  std::vector<at::Tensor> memory() const;

 private:
  void add_fragments(const at::Tensor& parameter, const std::vector<Shard>& shards,
                     const Masters& masters);

  const std::shared_ptr<ParameterStore> store_;
  const Ranks ranks_;
  BucketAssignment units_;
  std::vector<std::string> names_;  // By unit.
  std::vector<std::vector<std::string>> parameter_names_;
  std::vector<at::Tensor> parameters_;                     // Each once.
  std::vector<const void*> averaged_;                      // TensorImpls.
  std::unordered_map<const void*, at::ScalarType> types_;  // With masters, by TensorImpl.
  std::unordered_map<const void*, std::size_t> indices_;   // Averaged ones, by TensorImpl.
  std::vector<GradientSlices> slices_;                     // By unit.
  std::unordered_map<const void*, std::vector<Fragment>> fragments_;  // By TensorImpl.
  std::vector<bool> used_;                                            // By averaged parameter.
  std::vector<int> steppers_;                                         // By averaged parameter.
};

}  // namespace lockstep::parallel
