// A torch::nn::Module of named tensors and a function (docs/guide/torchscript.md).
//
//   const auto model = lockstep::function_module(
//       {{"layer.w", w}}, {{"mean", mean}},
//       [=](const torch::Tensor& x) { return (x - mean).matmul(w); });
//
// The module shares the tensors. "layer.w" creates a child "layer", whose tensors follow the
// module's own.
//
// Thread safety: that of the function.
// Errors: misuse, naming the tensor, if it is undefined, or its name is empty, has an empty level
// or occurs twice. Misuse for a parameter that is no leaf.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <utility>

#include "lockstep/base/api.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

// Registers the tensors in `root` and its children; creates missing children. Errors: as above.
LOCKSTEP_API void register_tensors(torch::nn::Module& root, const NamedTensors& parameters,
                                   const NamedTensors& buffers);

template <class Forward>
class FunctionModule : public torch::nn::Module {
 public:
  FunctionModule(const NamedTensors& parameters, const NamedTensors& buffers, Forward forward)
      : torch::nn::Module("FunctionModule"), forward_(std::move(forward)) {
    register_tensors(*this, parameters, buffers);
  }

  template <class... Inputs>
  decltype(auto) forward(Inputs&&... inputs) {
    return std::invoke(forward_, std::forward<Inputs>(inputs)...);
  }

 private:
  Forward forward_;
};

template <class Forward>
std::shared_ptr<FunctionModule<Forward>> function_module(const NamedTensors& parameters,
                                                         const NamedTensors& buffers,
                                                         Forward forward) {
  return std::make_shared<FunctionModule<Forward>>(parameters, buffers, std::move(forward));
}

}  // namespace lockstep
