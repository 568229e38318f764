// Adam, AdamW and SGD in one pass over the parameters.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <concepts>

#include "lockstep/base/api.h"

namespace lockstep {

// torch::optim::Adam with the same options, state and archives. step() runs ATen's fused kernel,
// which reads and writes parameters and state once. Weights and state equal those of Python's
// torch.optim.Adam(fused=True), bit for bit. A gradient or state with other strides than its
// parameter is copied first; Python pairs it with the wrong weights. A repeated parameter, such as
// a tied weight in module.parameters(), is stepped once.
//
// Errors, before any parameter is stepped: unsupported for sparse gradients, and for parameters
// that are not floating-point or are views with gaps in memory. Misuse for a gradient of another
// shape, and for state of another shape or without the tensors that the options need.
class LOCKSTEP_API Adam : public torch::optim::Adam {
 public:
  using torch::optim::Adam::Adam;

  torch::Tensor step(LossClosure closure = nullptr) override;
};

// torch::optim::AdamW with the changes of Adam above. Weights and state equal those of Python's
// torch.optim.AdamW(fused=True), bit for bit.
//
// Errors: as Adam's.
class LOCKSTEP_API AdamW : public torch::optim::AdamW {
 public:
  using torch::optim::AdamW::AdamW;

  torch::Tensor step(LossClosure closure = nullptr) override;
};

// torch::optim::SGD with the changes of Adam above. Supports momentum, dampening, Nesterov and
// weight decay. Weights and state equal those of Python's torch.optim.SGD(fused=True), bit for bit.
//
// Errors: as Adam's; also unsupported for parameters of half precision, because ATen's kernel
// updates only the last few of their weights (FusedSGDKernel.cpp, LibTorch 2.13).
class LOCKSTEP_API SGD : public torch::optim::SGD {
 public:
  using torch::optim::SGD::SGD;

  torch::Tensor step(LossClosure closure = nullptr) override;
};

template <class T, class... Types>
concept OneOf = (std::same_as<T, Types> || ...);

// True if an optimizer steps each element of a parameter independently, so that it also works on
// fragments. Specialise it for your own type, even if it derives from one of these:
//   template <> inline constexpr bool lockstep::is_elementwise<Lion> = true;
template <class Optimizer>
inline constexpr bool is_elementwise =
    OneOf<Optimizer, torch::optim::SGD, torch::optim::Adam, torch::optim::AdamW,
          torch::optim::Adagrad, torch::optim::RMSprop, Adam, AdamW, SGD>;

}  // namespace lockstep
