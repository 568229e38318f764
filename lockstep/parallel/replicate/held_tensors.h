// The parameters that a rank has: all of them, or its own parts of those that ranks have in one
// copy together. Each element is held by one rank of a copy, so what is kept beside it, such as an
// average, exists once per copy.
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

  // Each parameter once, under its first name, as a checkpoint describes it, sharing its memory.
  // Masters are meant where there are some.
  virtual std::map<std::string, StateTensor> tensors() const = 0;

  // Runs `change`, which writes to these tensors. Collective where ranks have one copy together; no
  // rank reads a parameter meanwhile.
  virtual void write(const std::function<void()>& change) = 0;
};

// All parameters of a module that is this rank's own.
std::unique_ptr<HeldTensors> whole_tensors_of(const torch::nn::Module& module);

// Of parameters in `store`, each rank holds one part of 1 / group.size() of the elements.
std::unique_ptr<HeldTensors> slices_held(const torch::nn::Module& module,
                                         std::shared_ptr<ParameterStore> store,
                                         const ProcessGroup& group);

}  // namespace lockstep::parallel
