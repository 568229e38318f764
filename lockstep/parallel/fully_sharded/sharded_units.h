// The units of a fully sharded module: parameters whose gradients are averaged together. Only the
// rank that steps a fragment has its mean gradient. With masters, of a more precise type, that rank
// steps the master and copies it into the fragment.
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

struct Unit {
  std::string name;
  std::vector<std::size_t> parameters;
};

// Units in the order in which backward() usually completes them. A parameter belongs to the module
// of the first pattern that matches one around it. FullyShardedOptions::units has the other rules.
// Errors: misuse for a pattern that matches no module with parameters.
std::vector<Unit> units_of(const NamedTensors& parameters,
                           const std::vector<std::string>& patterns);

// Returns the shard's elements of `values` (any strides), in the memory order of `parameter`.
at::Tensor fragment_of_values(const at::Tensor& values, const Shard& shard,
                              const at::Tensor& parameter);

class ShardedUnits {
 public:
  // Ranks of a copy of the parameters, and those with the same fragments in other copies.
  struct Ranks {
    HostGroups copy;
    std::optional<ProcessGroup> replicas = {};
  };

  // By the parameter's TensorImpl, with its strides.
  using Masters = std::unordered_map<const void*, at::Tensor>;

  // Collective. `parameters` are in `store`; `units` index those of them that require gradients.
  // `masters` are equal on all ranks.
  ShardedUnits(const NamedTensors& parameters, const std::vector<Unit>& units,
               std::shared_ptr<ParameterStore> store, Ranks ranks, const Masters& masters = {},
               GradientConversion conversion = {});

  const BucketAssignment& units() const { return units_; }
  const std::vector<std::vector<std::string>>& parameter_names() const { return parameter_names_; }

  // Collective: the mean for each of this rank's fragments, in the order of the unit's parameters.
  // `gradients` are in that order, too; missing ones count as zero. Errors name the unit.
  std::vector<at::Tensor> average(std::size_t unit, GradientSlices::Gradients gradients) const;

  // Adds means to gradients of stepped tensors. `used`: by index_of(); others' means are dropped.
  void add(std::size_t unit, const std::vector<at::Tensor>& means, const std::vector<bool>& used);

  void forget() noexcept;

  // Whether any rank has a gradient of this parameter.
  bool is_used(std::size_t parameter) const { return used_[parameter]; }
  void set_unused(std::size_t parameter) { used_[parameter] = false; }

  // Tensors are undefined on ranks that do not step the fragment.
  struct Fragment {
    Shard shard;             // `parameter` is the caller's.
    at::Tensor tensor = {};  // The stepped tensor: the master if there is one.
    at::Tensor stored = {};  // The elements of the parameter.

    void publish() const;
  };

  // Fragments on all ranks (Errors: misuse for other tensors), and the index if `parameter`
  // required a gradient.
  const std::vector<Fragment>& fragments_of(const at::Tensor& parameter) const;
  std::optional<std::size_t> index_of(const at::Tensor& parameter) const;

  // The type in which `parameter` is stepped.
  at::ScalarType type_of(const at::Tensor& parameter) const;

  // Collective, after writes to the first copy: updates other copies and masters.
  void follow_writes();

  // As ParameterStore's.
  void write(const std::function<void()>& write);

  ParameterStore& store() const { return *store_; }
  const Ranks& ranks() const { return ranks_; }

  void add_stepper(std::size_t parameter) { ++steppers_[parameter]; }
  void remove_stepper(std::size_t parameter) { --steppers_[parameter]; }

  // The first one with a gradient but no optimizer.
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
