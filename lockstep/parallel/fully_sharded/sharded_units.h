// The units of a fully sharded module: parameters whose gradients are averaged together, as soon as
// all of them have come. Each rank steps its fragments of them, and alone has their means.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/parallel/one_copy/gradient_slices.h"
#include "lockstep/parallel/one_copy/stepped_slices.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

class SharedParameters;

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

class ShardedUnits {
 public:
  // Collective. The `parameters` lie in `shared` memory.
  ShardedUnits(const NamedTensors& parameters, const std::vector<Unit>& units,
               std::shared_ptr<const SharedParameters> shared, const ProcessGroup& group);

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

  struct Fragment {
    Shard shard;        // `parameter` is the caller's.
    at::Tensor tensor;  // Undefined on ranks that do not step it.
  };

  // The fragments of `parameter` on all ranks, and its index; none for a parameter of the module
  // that required no gradient: it is one fragment, of rank 0. Errors: misuse for any other tensor.
  std::vector<Fragment> fragments_of(const at::Tensor& parameter) const;
  std::optional<std::size_t> index_of(const at::Tensor& parameter) const;

  // Optimizers tell while they step fragments.
  void add_stepper() { ++steppers_; }
  void remove_stepper() { --steppers_; }
  bool are_stepped() const { return steppers_ > 0; }

  std::vector<at::Tensor> memory() const;

 private:
  const std::shared_ptr<const SharedParameters> shared_;
  const int rank_;
  BucketAssignment units_;
  std::vector<std::string> names_;  // By unit.
  std::vector<std::vector<std::string>> parameter_names_;
  std::unordered_map<const void*, std::size_t> indices_;  // Of parameters, by TensorImpl.
  std::vector<GradientSlices> slices_;                    // By unit.
  std::vector<std::vector<Fragment>> fragments_;          // By parameter.
  std::vector<bool> used_;                                // By parameter.
  int steppers_ = 0;
};

}  // namespace lockstep::parallel
