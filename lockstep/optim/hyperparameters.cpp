// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/hyperparameters.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <charconv>
#include <sstream>
#include <string>
#include <typeinfo>

#include "lockstep/optim/optimizer_options.h"

namespace lockstep {
namespace {

// The shortest text that distinguishes `number` from every other number.
std::string text_of(double number) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

std::string text_of(const c10::IValue& value) {
  if (value.isDouble()) return text_of(value.toDouble());
  if (value.isTuple()) {
    std::string text;
    for (const c10::IValue& element : value.toTupleRef().elements())
      text += (text.empty() ? "(" : ", ") + text_of(element);
    return text + ")";
  }
  std::ostringstream text;
  text << value;
  return text.str();
}

}  // namespace

Facts hyperparameters_of(const torch::optim::Optimizer& optimizer) {
  const auto& groups = optimizer.param_groups();
  Facts facts{{"optimizer", c10::demangle(typeid(optimizer).name())},
              {"number of param groups", std::to_string(groups.size())}};
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string prefix = "param group " + std::to_string(i) + ": ";
    facts.emplace_back(prefix + "number of parameters", std::to_string(groups[i].params().size()));
    for (const auto& [name, value] : archived_values(groups[i].options()))
      facts.emplace_back(prefix + name, text_of(value));
  }
  return facts;
}

}  // namespace lockstep
