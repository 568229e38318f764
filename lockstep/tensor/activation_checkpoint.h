// Activation checkpointing: backward() recomputes a block's activations.
//
//   for (auto& block : blocks) x = lockstep::activation_checkpoint(*block, x);
//
// Cost: one more forward of each block. Memory: all blocks' inputs, and one's activations.
// Equality: results, gradients and generators have the same bits as without checkpoints. Exception:
// a tensor that one block uses several times, and others too, sums its gradients in another order.
// The second forward gets the first one's default generators and autocast state. It leaves the
// module's buffers unchanged. Hooks of parameters run once. Parameters may be frozen or tied,
// blocks nested. A block that communicates does so again in backward().
// Thread safety: that of the block. Threads that share the default generator get undefined dropout
// masks. Errors: in forward, misuse for a leaf that needs a gradient but is neither input nor
// parameter, and for inputs changed in place. In backward(), misuse if the second forward returns
// other shapes or types, or calls other kept operators; unsupported for create_graph.
// Lifetime: modules in a std::shared_ptr are kept alive. Other modules, and what a function refers
// to, must outlive backward().

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <concepts>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/tensor/detail/checkpointed_call.h"

namespace lockstep {

struct ActivationCheckpointOptions {
  // Selects operators, such as "aten::mm", whose results are kept instead of recomputed. A kept
  // result costs its memory, and a copy if the block returns it or changes it in place. Views,
  // lists of tensors, and results of operators that change inputs are never kept. `keep` must
  // return the same in both forwards. Names are those below autograd: Linear is aten::addmm for 2-d
  // inputs, otherwise aten::mm and aten::add_.
  std::function<bool(std::string_view)> keep = {};

  // Generators that the block uses besides the default ones. For a missing one, backward() draws
  // other random numbers than forward().
  std::vector<at::Generator> generators = {};

  std::string name = {};  // For messages. Default: the module's class.
};

// Returns module.forward(inputs...). Inputs and result are tensors, tuples, ranges and optionals of
// them, and other values, which are copied.
template <class Module, class... Inputs>
  requires std::derived_from<Module, torch::nn::Module>
auto activation_checkpoint(const ActivationCheckpointOptions& options, Module& module,
                           const Inputs&... inputs) {
  if (!at::GradMode::is_enabled()) return module.forward(inputs...);
  const auto owner = module.weak_from_this().lock();  // Null if no shared_ptr owns it.
  return checkpointing::run_call(
      [owner, &module](const auto&... values) { return module.forward(values...); },
      checkpointing::block_of(module, options.keep, options.generators, options.name), inputs...);
}

template <class Module, class... Inputs>
  requires std::derived_from<Module, torch::nn::Module>
auto activation_checkpoint(Module& module, const Inputs&... inputs) {
  return activation_checkpoint(ActivationCheckpointOptions{}, module, inputs...);
}

// `parameters`: all leaves that `function` uses and that require a gradient, except inputs.
template <class Function, class... Inputs>
  requires std::invocable<Function&, const Inputs&...>
auto activation_checkpoint(const ActivationCheckpointOptions& options, Function function,
                           const std::vector<at::Tensor>& parameters, const Inputs&... inputs) {
  if (!at::GradMode::is_enabled()) return function(inputs...);
  checkpointing::Block block{.parameters = parameters,
                             .keep = options.keep,
                             .generators = options.generators,
                             .name = options.name};
  return checkpointing::run_call(std::move(function), std::move(block), inputs...);
}

template <class Function, class... Inputs>
  requires std::invocable<Function&, const Inputs&...>
auto activation_checkpoint(Function function, const std::vector<at::Tensor>& parameters,
                           const Inputs&... inputs) {
  return activation_checkpoint(ActivationCheckpointOptions{}, std::move(function), parameters,
                               inputs...);
}

}  // namespace lockstep
