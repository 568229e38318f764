// The state that LibTorch's optimizers keep for a parameter, in a form common to all types.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

class Adam;
class AdamW;
class SGD;

template <class T, class... Types>
concept OneOf = (std::same_as<T, Types> || ...);

// Whether an optimizer steps each element of a parameter separately, so that it also works on
// fragments of a parameter. Specialise it for your own type, also if that derives from one of
// these:
//   template <> inline constexpr bool lockstep::is_elementwise<Lion> = true;
template <class Optimizer>
inline constexpr bool is_elementwise =
    OneOf<Optimizer, torch::optim::SGD, torch::optim::Adam, torch::optim::AdamW,
          torch::optim::Adagrad, torch::optim::RMSprop, Adam, AdamW, SGD>;

// The members of one state under their names in archives, to read and to set. Tensors have the
// parameter's shape; those that the optimizer's options do not need are undefined.
struct OptimizerStateParts {
  std::string_view optimizer;  // For example "Adam", also for derived classes.
  std::vector<std::pair<std::string_view, at::Tensor*>> tensors;
  std::vector<std::pair<std::string_view, std::int64_t*>> integers;
};

// Lifetime: the result points into `state`.
// Errors: unsupported, with its name, for a state that is not of SGD, Adam, AdamW, Adagrad or
// RMSprop.
LOCKSTEP_API OptimizerStateParts parts_of(torch::optim::OptimizerParamState& state);

// Makes an empty state of the type that `optimizer` uses.
// Errors: unsupported, with its name, for an optimizer that is none of these five.
LOCKSTEP_API std::unique_ptr<torch::optim::OptimizerParamState> make_param_state(
    const torch::optim::Optimizer& optimizer);

}  // namespace lockstep
