// A variable of the program, as a part of a checkpoint.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "lockstep/base/error.h"
#include "lockstep/tensor/state.h"

namespace lockstep::train {

template <class T>
using SavedAs =
    std::conditional_t<std::same_as<T, bool>, bool,
                       std::conditional_t<std::integral<T>, std::int64_t,
                                          std::conditional_t<std::floating_point<T>, double, T>>>;

template <class T>
class VariableState : public Stateful {
 public:
  VariableState(std::string name, T& variable) : name_(std::move(name)), variable_(variable) {}

  StateDict state_dict() override {
    if constexpr (std::integral<T>)
      require(std::in_range<std::int64_t>(widened(variable_)),
              [&] { return "TrainingState: '" + name_ + "' is too large for a checkpoint"; });
    return {.tensors = {}, .values = {{"value", static_cast<SavedAs<T>>(variable_)}}};
  }

  StateRequest wanted(const StateDict& saved) override {
    static_cast<void>(value_in(saved));
    return {};
  }

  void load_state_dict(StateDict state) override { variable_ = value_in(state); }

 private:
  // std::in_range() does not accept characters and bool.
  static auto widened(T value) {
    if constexpr (std::unsigned_integral<T>)
      return static_cast<std::uint64_t>(value);
    else
      return static_cast<std::int64_t>(value);
  }

  T value_in(const StateDict& saved) const {
    const auto found = saved.values.find("value");
    const auto* value =
        found == saved.values.end() ? nullptr : std::get_if<SavedAs<T>>(&found->second);
    require(value != nullptr, [&] {
      return "TrainingState: the saved '" + name_ + "' has another type than the variable";
    });
    require(fits(*value), [&] {
      return "TrainingState: the saved '" + name_ + "' does not fit the variable's type";
    });
    return static_cast<T>(*value);
  }

  static bool fits(const SavedAs<T>& value) {
    using Limits = std::numeric_limits<T>;
    if constexpr (std::integral<T> && !std::same_as<T, bool>)
      return std::cmp_greater_equal(value, widened(Limits::min())) &&
             std::cmp_less_equal(value, widened(Limits::max()));
    else if constexpr (std::same_as<T, float>)
      return !std::isfinite(value) || std::abs(value) <= static_cast<double>(Limits::max());
    else
      return true;
  }

  const std::string name_;
  T& variable_;
};

}  // namespace lockstep::train
