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

// torch::optim::Adam with the same options, state and archives, stepped by ATen's fused kernel.
// Weights and state equal Python's torch.optim.Adam(fused=True), bit for bit. A gradient or state
// with other strides than its parameter is copied first; Python pairs it with the wrong weights. A
// parameter repeated within its group is stepped once.
//
// Errors, before any parameter is stepped: unsupported for sparse gradients, and for parameters
// that are not floating-point or are views with gaps in memory. Misuse for a parameter in two
// groups or on meta, a gradient or state of another shape, and state without needed tensors.
class LOCKSTEP_API Adam : public torch::optim::Adam {
 public:
  using torch::optim::Adam::Adam;

  torch::Tensor step(LossClosure closure = nullptr) override;
};

// torch::optim::AdamW, likewise equal to torch.optim.AdamW(fused=True). Errors: as Adam's.
class LOCKSTEP_API AdamW : public torch::optim::AdamW {
 public:
  using torch::optim::AdamW::AdamW;

  torch::Tensor step(LossClosure closure = nullptr) override;
};

// torch::optim::SGD, likewise equal to torch.optim.SGD(fused=True). Errors: as Adam's; also
// unsupported for half-precision parameters, because ATen's kernel updates only their last few
// weights (FusedSGDKernel.cpp, LibTorch 2.13).
class LOCKSTEP_API SGD : public torch::optim::SGD {
 public:
  using torch::optim::SGD::SGD;

  torch::Tensor step(LossClosure closure = nullptr) override;
};

template <class T, class... Types>
concept OneOf = (std::same_as<T, Types> || ...);

// Whether an optimizer steps each element independently, and so also fragments. Specialise it for
// your own type, even if derived from one of these:
//   template <> inline constexpr bool lockstep::is_elementwise<Lion> = true;
template <class Optimizer>
inline constexpr bool is_elementwise =
    OneOf<Optimizer, torch::optim::SGD, torch::optim::Adam, torch::optim::AdamW,
          torch::optim::Adagrad, torch::optim::RMSprop, Adam, AdamW, SGD>;

}  // namespace lockstep
