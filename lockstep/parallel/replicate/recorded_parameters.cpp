// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/replicate/recorded_parameters.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace lockstep::parallel {
namespace {

// LibTorch's parameters() copies all names and handles, which takes as long as a small forward().
struct Members : torch::nn::Module {
  static const auto& parameters_in(const torch::nn::Module& module) {
    return module.*(&Members::parameters_);
  }
};

// Calls visit(tensor) for each defined parameter until false. Returns whether all were visited.
template <class Visit>
bool visit_parameters(const torch::nn::Module& module, const Visit& visit) {
  for (const auto& item : Members::parameters_in(module))
    if (item.value().defined() && !visit(item.value())) return false;
  for (const auto& child : module.children())
    if (!visit_parameters(*child, visit)) return false;
  return true;
}

constexpr std::string_view too_late =
    " after DistributedDataParallel was made: make the change before, or make "
    "another DistributedDataParallel";

}  // namespace

RecordedParameters::RecordedParameters(const torch::nn::Module& module, bool with_forms) {
  for (auto& [name, tensor] : named_parameters(module)) {
    const bool trained = tensor.requires_grad();
    Parameter parameter{.name = name, .tensor = tensor, .trained = trained, .form = {}};
    if (with_forms && trained) parameter.form.emplace(tensor);
    parameters_.push_back(std::move(parameter));
  }
}

std::string RecordedParameters::change_in(const torch::nn::Module& module) const {
  const Parameter* first = nullptr;  // The first one with this tensor, but changed.
  std::size_t index = 0;
  const bool same = visit_parameters(module, [&](const at::Tensor& tensor) {
    if (index == parameters_.size()) return false;
    const Parameter& recorded = parameters_[index++];
    if (!tensor.is_same(recorded.tensor)) return false;
    const bool changed = (tensor.requires_grad() && !recorded.trained) ||
                         (recorded.form && !recorded.form->matches(tensor));
    if (changed && first == nullptr) first = &recorded;
    return true;
  });
  if (!same || index != parameters_.size())
    return "parameter " + other_tensor_in(module) + std::string(too_late);
  if (first == nullptr) return {};
  if (first->form)
    return "parameter " + first->name + ' ' + first->form->change_to(first->tensor) +
           std::string(too_late);
  return "parameter " + first->name +
         " requires a gradient since DistributedDataParallel was made, so the gradient would not "
         "be averaged: make DistributedDataParallel after requires_grad_(true), or make it while "
         "all parameters require gradients and freeze some afterwards";
}

const RecordedParameters::Parameter* RecordedParameters::named(const std::string& name) const {
  const auto found = std::ranges::find(parameters_, name, &Parameter::name);
  return found == parameters_.end() ? nullptr : &*found;
}

std::string RecordedParameters::other_tensor_in(const torch::nn::Module& module) const {
  const NamedTensors now = named_parameters(module);
  for (const auto& [name, tensor] : now) {
    const Parameter* const recorded = named(name);
    if (recorded == nullptr) return name + " was added";
    if (recorded->tensor.is_same(tensor)) continue;
    for (const Parameter& other : parameters_)
      if (other.tensor.is_same(tensor)) return name + " was tied to " + other.name;
    return name + " was replaced by another tensor";
  }
  for (const Parameter& recorded : parameters_)
    if (std::ranges::find(now, recorded.name, &NamedTensors::value_type::first) == now.end())
      return recorded.name + " was removed";
  return parameters_.front().name + " or another one was given another place in the module";
}

}  // namespace lockstep::parallel
