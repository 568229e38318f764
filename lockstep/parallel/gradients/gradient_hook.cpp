// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/gradient_hook.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace lockstep::parallel {

using torch::autograd::variable_list;

// Called after LibTorch has added to `.grad`.
class ParameterHooks::Hook final : public torch::autograd::FunctionPostHook {
 public:
  Hook(GradientOwner& its_owner, std::size_t index, NodePtr its_accumulator)
      : owner(its_owner), accumulator(std::move(its_accumulator)), index_(index) {}

  variable_list operator()(const variable_list& outputs, const variable_list& incoming) override {
    owner.on_gradient(index_, incoming[0]);
    return outputs;
  }

  GradientOwner& owner;
  const NodePtr accumulator;  // Exists only while referenced.
  bool is_in_charge = false;

 private:
  const std::size_t index_;
};

std::vector<ParameterHooks::Hook*> ParameterHooks::hooks_on(
    const torch::autograd::Node& accumulator) {
  std::vector<Hook*> found;
  for (const auto& each : accumulator.post_hooks())
    if (auto* const hook = dynamic_cast<Hook*>(each.get())) found.push_back(hook);
  return found;
}

void ParameterHooks::Remove::operator()(Hook* hook) const noexcept {
  const NodePtr accumulator = hook->accumulator;  // Outlives the hook that it owns.
  const bool was_in_charge = hook->is_in_charge;
  accumulator->del_post_hook(reinterpret_cast<std::uintptr_t>(hook));
  const auto others = hooks_on(*accumulator);
  if (was_in_charge && !others.empty()) others.back()->is_in_charge = true;
}

bool has_gradient_hook(const at::Tensor& parameter) {
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  return accumulator != nullptr && !ParameterHooks::hooks_on(*accumulator).empty();
}

bool accumulates_gradients() {
  const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
  if (wanted == nullptr || wanted->empty()) return true;  // backward() for all leaves.
  return std::any_of(wanted->begin(), wanted->end(), [](const auto& entry) {
    return entry.second.needed_ &&
           dynamic_cast<const torch::autograd::AccumulateGrad*>(entry.first) != nullptr;
  });
}

ParameterHooks::ParameterHooks(const NamedTensors& parameters, GradientOwner& owner)
    : parameters_(parameters), owner_(owner) {
  for (std::size_t i = 0; i < parameters.size(); ++i) hooks_.push_back(hook_on(i));
}

ParameterHooks::~ParameterHooks() = default;

ParameterHooks::OwnHook ParameterHooks::hook_on(std::size_t index) const {
  const auto accumulator = torch::autograd::impl::grad_accumulator(parameters_[index].second);
  auto added = std::make_unique<Hook>(owner_, index, accumulator);
  Hook* const hook = added.get();
  hook->is_in_charge = hooks_on(*accumulator).empty();
  accumulator->add_post_hook(std::move(added));
  return OwnHook(hook);
}

// A frozen parameter has no accumulator.
void ParameterHooks::renew() {
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    const auto current = torch::autograd::impl::grad_accumulator(parameters_[i].second);
    if (current != nullptr && current != hooks_[i]->accumulator) hooks_[i] = hook_on(i);
  }
}

void ParameterHooks::renew_accumulators() {
  for (const auto& [name, parameter] : parameters_) {
    const at::Tensor data = parameter.detach();
    const auto other = data.scalar_type() == at::kFloat ? at::kDouble : at::kFloat;
    parameter.set_data(at::empty({0}, data.options().dtype(other)));
    parameter.set_data(data);
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined() && gradient.sizes() != data.sizes()) gradient.reset();
  }
  renew();
}

void ParameterHooks::take_charge() const {
  for (const OwnHook& own : hooks_) {
    if (own->is_in_charge) continue;
    for (Hook* const hook : hooks_on(*own->accumulator)) hook->is_in_charge = hook == own.get();
  }
}

bool ParameterHooks::is_in_charge(std::size_t index) const { return hooks_[index]->is_in_charge; }

std::vector<bool> ParameterHooks::in_charge() const {
  std::vector<bool> all;
  for (const OwnHook& own : hooks_) all.push_back(own->is_in_charge);
  return all;
}

bool ParameterHooks::has_others() const {
  for (std::size_t i = 0; i < hooks_.size(); ++i)
    if (has_others(i)) return true;
  return false;
}

bool ParameterHooks::has_others(std::size_t index) const {
  return hooks_on(*hooks_[index]->accumulator).size() > 1;
}

std::string ParameterHooks::refused() const {
  std::string names;
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    const auto hooks = hooks_on(*hooks_[i]->accumulator);
    const bool all_allow =
        std::ranges::all_of(hooks, [](const Hook* hook) { return hook->owner.allows_others(); });
    if (hooks.size() == 1 || all_allow) continue;
    names += (names.empty() ? "" : ", ") + parameters_[i].first;
  }
  return names;
}

bool ParameterHooks::are_reached() const {
  const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
  const bool everything = wanted == nullptr || wanted->empty();  // True in backward().
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    if (!is_in_charge(i) || !parameters_[i].second.requires_grad()) continue;
    if (everything) return true;
    const auto found = wanted->find(hooks_[i]->accumulator.get());
    if (found != wanted->end() && found->second.should_execute()) return true;
  }
  return false;
}

}  // namespace lockstep::parallel
