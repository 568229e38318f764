// The call that activation_checkpoint() makes twice. Public only for that template.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {
namespace checkpointing {

using Tensors = std::vector<at::Tensor>;

// Calls visit() for each tensor in a tensor, tuple, range or optional.
template <class T, class Visit>
void for_each_in(T& value, Visit& visit) {
  if constexpr (std::is_convertible_v<T&, at::Tensor&>) {
    visit(static_cast<at::Tensor&>(value));
  } else if constexpr (std::ranges::input_range<T>) {
    if constexpr (!std::is_arithmetic_v<std::ranges::range_value_t<T>>)
      for (auto& element : value) for_each_in(element, visit);
  } else if constexpr (requires { value.has_value(), *value; }) {
    if (value) for_each_in(*value, visit);
  } else if constexpr (requires { typename std::tuple_size<T>::type; }) {
    std::apply([&](auto&... parts) { (for_each_in(parts, visit), ...); }, value);
  }
}

template <class T>
Tensors take_tensors(T& value) {
  Tensors taken;
  auto visit = [&](at::Tensor& tensor) { taken.push_back(std::exchange(tensor, {})); };
  for_each_in(value, visit);
  return taken;
}

template <class T>
void put_tensors(T& value, const Tensors& tensors) {
  std::size_t next = 0;
  auto visit = [&](at::Tensor& tensor) { tensor = tensors.at(next++); };
  for_each_in(value, visit);
}

struct Block {
  std::function<Tensors(const Tensors&)> function = {};
  Tensors parameters = {};
  Tensors buffers = {};
  std::function<bool(std::string_view)> keep = {};  // ActivationCheckpointOptions::keep.
  std::vector<at::Generator> generators = {};
  std::string name = {};
};

LOCKSTEP_API Tensors run(Block block, const Tensors& inputs);

// An empty `name` becomes the module's class.
LOCKSTEP_API Block block_of(torch::nn::Module& module, std::function<bool(std::string_view)> keep,
                            std::vector<at::Generator> generators, std::string name);

// run() for arguments and results with nested tensors.
template <class Call, class... Inputs>
auto run_call(Call call, Block block, const Inputs&... inputs) {
  using Result = std::decay_t<std::invoke_result_t<Call&, const std::decay_t<Inputs>&...>>;
  std::tuple<std::decay_t<Inputs>...> arguments(inputs...);
  const Tensors tensors = take_tensors(arguments);
  const auto shell = std::make_shared<std::optional<Result>>();  // A result without its tensors.
  block.function = [call, arguments, shell](const Tensors& values) mutable {
    auto filled = arguments;
    put_tensors(filled, values);
    shell->emplace(std::apply(call, std::as_const(filled)));
    return take_tensors(**shell);
  };
  const Tensors outputs = run(std::move(block), tensors);
  Result result = std::move(**shell);
  put_tensors(result, outputs);
  return result;
}

}  // namespace checkpointing

}  // namespace lockstep
