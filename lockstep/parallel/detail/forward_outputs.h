// Finds the tensors in the result of a module's forward(): a tensor, or nested tuples, pairs,
// ranges, maps and optionals. An IValue, a script's result, may hold all of these.
//
// For your own type, define for_each_tensor(value, visit), found by argument-dependent lookup,
// which calls visit(tensor) for each tensor. Tensors in other types are ignored.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <utility>

namespace lockstep {
namespace outputs {

template <class T>
constexpr bool is_optional = false;
template <class T>
constexpr bool is_optional<std::optional<T>> = true;

template <class T>
concept TupleLike = requires { typename std::tuple_size<T>::type; };

template <class T, class Visit>
concept Taught = requires(const T& value, Visit& visit) { for_each_tensor(value, visit); };

}  // namespace outputs

template <class T, class Visit>
void visit_tensors(const T& value, Visit& visit) {
  if constexpr (std::is_convertible_v<const T&, const at::Tensor&>) {
    visit(static_cast<const at::Tensor&>(value));
  } else if constexpr (std::is_same_v<T, c10::IValue>) {
    value.visit([&visit](const c10::IValue& part) {
      if (part.isTensor()) visit(part.toTensor());
      return false;  // IValue::visit() then goes on to the values that `part` contains.
    });
  } else if constexpr (outputs::Taught<T, Visit>) {
    for_each_tensor(value, visit);
  } else if constexpr (outputs::is_optional<T>) {
    if (value) visit_tensors(*value, visit);
  } else if constexpr (std::ranges::input_range<const T>) {
    using Element = std::ranges::range_value_t<const T>;
    if constexpr (!std::is_arithmetic_v<Element> && !std::is_same_v<Element, T>)
      for (const auto& element : value) visit_tensors(element, visit);
  } else if constexpr (outputs::TupleLike<T>) {
    std::apply([&](const auto&... parts) { (visit_tensors(parts, visit), ...); }, value);
  }
}

}  // namespace lockstep
