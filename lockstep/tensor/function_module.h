// A torch::nn::Module made of named tensors and any function that computes with them.
//
//   auto w = torch::randn({10, 3}).requires_grad_();
//   auto mean = torch::zeros({10});
//   const auto model = lockstep::function_module(
//       {{"layer.w", w}}, {{"mean", mean}},
//       [=](const torch::Tensor& x) { return (x - mean).matmul(w); });
//   lockstep::DistributedDataParallel ddp(model, world);
//
// The module shares the tensors; it makes no copies. DistributedDataParallel, checkpoints,
// load_weights() and optimizers treat it like any other module. A name with several levels, such as
// "layer.w", creates a child "layer". The module lists its own tensors before those of its
// children.
//
// Thread safety: that of the function.
// Errors: misuse, naming the tensor, for an undefined tensor and for a name that is empty, has an
// empty level or occurs twice. Also for a parameter that is the result of an operation on others.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <utility>

#include "lockstep/base/api.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

// Registers the tensors in `root` and its children, which it creates if necessary. requires_grad
// flags do not change. Errors: as above.
LOCKSTEP_API void register_tensors(torch::nn::Module& root, const NamedTensors& parameters,
                                   const NamedTensors& buffers);

template <class Forward>
class FunctionModule : public torch::nn::Module {
 public:
  FunctionModule(const NamedTensors& parameters, const NamedTensors& buffers, Forward forward)
      : torch::nn::Module("FunctionModule"), forward_(std::move(forward)) {
    register_tensors(*this, parameters, buffers);
  }

  // Calls the function, with any arguments and result.
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
