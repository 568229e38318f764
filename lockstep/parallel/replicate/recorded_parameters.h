// Detects changes of a module's parameters that would prevent averaging.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/gradients/gradient_memory.h"
#include "lockstep/tensor/named_tensors.h"

namespace torch::nn {
class Module;
}

namespace lockstep::parallel {

class RecordedParameters {
 public:
  // `with_forms`: also detects changes of types, shapes and devices of trained parameters.
  RecordedParameters(const torch::nn::Module& module, bool with_forms);

  // The first change that would make replicas differ, or empty. Detects parameters that were added,
  // removed, replaced by another tensor or tied, or require a gradient only now. Parameters may be
  // frozen, and get other memory and another memory format.
  std::string change_in(const torch::nn::Module& module) const;

 private:
  struct Parameter {
    std::string name;
    at::Tensor tensor;  // Prevents reuse of the address.
    bool trained;
    std::optional<GradientForm> form;
  };

  const Parameter* named(const std::string& name) const;
  std::string other_tensor_in(const torch::nn::Module& module) const;

  std::vector<Parameter> parameters_;  // In the module's order.
};

}  // namespace lockstep::parallel
