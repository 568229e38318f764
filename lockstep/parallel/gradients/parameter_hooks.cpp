// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/parameter_hooks.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/node.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace lockstep {

ParameterHooks::ParameterHooks(const NamedTensors& parameters, GradientOwner& owner)
    : parameters_(parameters), owner_(owner) {
  for (std::size_t i = 0; i < parameters.size(); ++i) hooks_.push_back(hook_on(i));
}

std::unique_ptr<GradientHook> ParameterHooks::hook_on(std::size_t index) const {
  return std::make_unique<GradientHook>(parameters_[index].second, owner_, index);
}

// A parameter that is frozen has no accumulator.
void ParameterHooks::renew() {
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    const auto current = torch::autograd::impl::grad_accumulator(parameters_[i].second);
    if (current != nullptr && current.get() != hooks_[i]->accumulator()) hooks_[i] = hook_on(i);
  }
}

void ParameterHooks::take_charge() const {
  for (const auto& hook : hooks_) hook->take_charge();
}

bool ParameterHooks::has_others() const {
  return std::any_of(hooks_.begin(), hooks_.end(),
                     [](const auto& hook) { return hook->has_others(); });
}

std::string ParameterHooks::refused() const {
  std::string names;
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    const GradientHook& hook = *hooks_[i];
    if (!hook.has_others() || (owner_.allows_others() && hook.is_allowed())) continue;
    names += (names.empty() ? "" : ", ") + parameters_[i].first;
  }
  return names;
}

bool ParameterHooks::are_reached() const {
  const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
  const bool everything = wanted == nullptr || wanted->empty();  // backward()
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    if (!is_in_charge(i) || !parameters_[i].second.requires_grad()) continue;
    if (everything) return true;
    const auto found = wanted->find(hooks_[i]->accumulator());
    if (found != wanted->end() && found->second.should_execute()) return true;
  }
  return false;
}

}  // namespace lockstep
