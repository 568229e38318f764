// The units of a fully sharded module: parameters whose gradients are averaged together, as soon as
// all of them have come. Each rank steps its fragments of them, and alone has their means. With
// masters it steps these, of a more precise type, and copies them into the fragments.
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
#include "lockstep/parallel/one_copy/gradient_slices.h"
#include "lockstep/parallel/one_copy/host_groups.h"
#include "lockstep/parallel/one_copy/stepped_slices.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

class ParameterStore;

// Parameters, by their indices, and the name of the module that has them.
struct Unit {
  std::string name;
  std::vector<std::size_t> parameters;
};

// The units of these `parameters`, in the order in which backward() tends to complete them. A
// pattern makes a unit of the parameters below each module whose name matches; the first pattern
// that matches counts. Without patterns these are the numbered modules: those in a Sequential or a
// ModuleList. The rest is a unit of its own.
// Errors: misuse for a pattern that matches no module with parameters.
std::vector<Unit> units_of(const NamedTensors& parameters,
                           const std::vector<std::string>& patterns);

// The elements of a fragment of `parameter`, in CPU memory, of `values` that may lie in another
// order.
at::Tensor fragment_of_values(const at::Tensor& values, const Shard& shard,
                              const at::Tensor& parameter);

class ShardedUnits {
 public:
  // Ranks that have one copy of the parameters together, and this rank's likes in other copies.
  struct Ranks {
    HostGroups copy;
    std::optional<ProcessGroup> replicas = {};
  };

  // Values of parameters, by their TensorImpl, in their own strides.
  using Masters = std::unordered_map<const void*, at::Tensor>;

  // Collective. The `parameters`, of which those of `units` are averaged, lie in `store`. `masters`
  // are equal on all ranks.
  ShardedUnits(const NamedTensors& parameters, const std::vector<Unit>& units,
               std::shared_ptr<ParameterStore> store, Ranks ranks, const Masters& masters = {},
               GradientConversion conversion = {});

  // By unit: indices of its parameters, and their names.
  const BucketAssignment& units() const { return units_; }
  const std::vector<std::vector<std::string>>& parameter_names() const { return parameter_names_; }

  // Collective: this rank's means of a unit's `gradients`, which are in the order of its
  // parameters. Missing ones count as zero. Errors name the unit.
  std::vector<at::Tensor> average(std::size_t unit, GradientSlices::Gradients gradients) const;

  // Adds these to what the fragments have, those of parameters that are `used`.
  void add(std::size_t unit, const std::vector<at::Tensor>& means, const std::vector<bool>& used);

  // All gradients of fragments are undefined afterwards.
  void forget() noexcept;

  // Whether fragments have a gradient of this parameter, on whatever rank.
  bool is_used(std::size_t parameter) const { return used_[parameter]; }
  void set_unused(std::size_t parameter) { used_[parameter] = false; }

  // Tensors are undefined on ranks that do not step the fragment.
  struct Fragment {
    Shard shard;             // `parameter` is the caller's.
    at::Tensor tensor = {};  // What is stepped: the master if there is one.
    at::Tensor stored = {};  // The elements of the parameter.

    void publish() const;
  };

  // The fragments of `parameter` on all ranks, also of one that required no gradient, and the index
  // of one that did. Errors: misuse for a tensor that is not one of the parameters.
  const std::vector<Fragment>& fragments_of(const at::Tensor& parameter) const;
  std::optional<std::size_t> index_of(const at::Tensor& parameter) const;

  // In which the parameter is stepped.
  at::ScalarType type_of(const at::Tensor& parameter) const;

  // Collective: parameters were written, in the first copy. Other copies and masters follow.
  void follow_writes();

  // Collective: `write` writes to fragments, of whatever parameters, while no rank reads any.
  void write(const std::function<void()>& write);

  ParameterStore& store() const { return *store_; }
  const Ranks& ranks() const { return ranks_; }

  // Optimizers tell which parameters they step, and when they do not any more.
  void add_stepper(std::size_t parameter) { ++steppers_[parameter]; }
  void remove_stepper(std::size_t parameter) { --steppers_[parameter]; }

  // The first parameter whose fragments have a gradient, and that no optimizer steps.
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
  std::vector<at::Tensor> parameters_;                     // All, each once.
  std::vector<const void*> averaged_;                      // TensorImpls.
  std::unordered_map<const void*, at::ScalarType> types_;  // Of masters, by TensorImpl.
  std::unordered_map<const void*, std::size_t> indices_;   // Of averaged ones, by TensorImpl.
  std::vector<GradientSlices> slices_;                     // By unit.
  std::unordered_map<const void*, std::vector<Fragment>> fragments_;  // By TensorImpl.
  std::vector<bool> used_;                                            // By averaged parameter.
  std::vector<int> steppers_;                                         // By averaged parameter.
};

}  // namespace lockstep::parallel
