// The parameters that a rank holds: all of them, or its own parts of shared ones. Each element of a
// copy, and data stored with it such as an average, exists on one rank.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/state.h"

namespace lockstep::parallel {

class ParameterStore;

class HeldTensors {
 public:
  virtual ~HeldTensors() = default;

  // Each parameter, or its master, once under its first name, described as in a checkpoint, sharing
  // its memory.
  virtual std::map<std::string, StateTensor> tensors() const = 0;

  // The ranks that together hold a copy; null if this rank has its own.
  virtual const ProcessGroup* sharing_ranks() const = 0;

  // Errors: as ParameterStore::require_intact().
  virtual void require_intact() const = 0;

  // `change` writes to these tensors. Collective over sharing_ranks(): no rank reads a parameter
  // meanwhile.
  virtual void write(const std::function<void()>& change) = 0;

  // On this rank only, when the others cannot be reached. Shared parameters are then partially
  // updated.
  virtual void write_alone(const std::function<void()>& change) = 0;
};

// All parameters of a module that this rank owns.
std::unique_ptr<HeldTensors> whole_tensors_of(const torch::nn::Module& module);

// Each rank holds one part, 1 / group.size() of the elements, of every parameter in `store`.
std::unique_ptr<HeldTensors> slices_held(const torch::nn::Module& module,
                                         std::shared_ptr<ParameterStore> store,
                                         const ProcessGroup& group);

}  // namespace lockstep::parallel
