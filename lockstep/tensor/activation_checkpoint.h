// Trades time for memory: a block's activations are computed again in backward(), not kept.
//
//   for (auto& block : blocks) x = lockstep::activation_checkpoint(*block, x);
//
// Backward needs the block's inputs, which are kept, and one more forward of the block. A chain of
// blocks therefore holds its blocks' inputs, and the activations of one block at a time.
// Equality: results, gradients and generators are those without checkpoints, bit for bit. Gradients
// of a tensor that a block uses more than once, and that others use too, are added in another
// order.
// Kept for the second forward: the state of the default generators, autocast, and buffers of the
// module, such as a BatchNorm's statistics, which the second forward does not update again.
// Parameters: their hooks run once, also DistributedDataParallel's. Frozen and tied parameters may
// be used.
// Communication: a block that communicates does so again in backward(), on all ranks alike.
// Autograd: nothing is recorded, and there is no cost, without a gradient. A gradient of a gradient
// is refused. Blocks may be nested.
// Memory: the first forward holds the block's activations until it returns, as the second one does.
// Thread safety: as of the block. Threads that share the default generator get no defined masks.
// Errors: misuse, in forward, for a parameter that the block uses but that was not named, if there
// is a gradient, and for inputs that are changed in place. Misuse, in backward(), when the second
// forward has other results. Unsupported for backward() with create_graph. Lifetime: modules that a
// std::shared_ptr owns are kept alive. Other modules, and all that a function refers to, must exist
// until backward().

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
  // Chooses operators whose results are kept, by names such as "aten::mm"; all others run again.
  // Empty: none is kept. Each kept result costs its size in memory, and a copy if the block changes
  // it in place. Names are those below autograd: LibTorch's Linear is aten::addmm for 2-d inputs,
  // else aten::mm and aten::add_; attention on a CPU is
  // aten::_scaled_dot_product_flash_attention_for_cpu. Views, and operators that change their
  // inputs, are never kept. Must answer alike in both forwards.
  std::function<bool(std::string_view)> keep = {};

  // Generators of the block besides the default ones. Missing ones make backward() use other
  // random numbers than forward().
  std::vector<at::Generator> generators = {};

  std::string name = {};  // For messages. Default: the module's class.
};

// Returns module.forward(inputs...). Inputs and result: tensors, and tuples, ranges and optionals
// of tensors; values of other types, such as flags, are copied.
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

// Returns function(inputs...). `parameters` are all leaves that the function uses besides its
// inputs and that require a gradient.
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
