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

class GradientHook::Post final : public torch::autograd::FunctionPostHook {
 public:
  Post(GradientOwner& its_owner, std::size_t index) : owner(its_owner), index_(index) {}

  variable_list operator()(const variable_list& outputs, const variable_list& incoming) override {
    owner.on_gradient(index_, incoming[0]);
    return outputs;
  }

  static Post* add_to(torch::autograd::Node& accumulator, GradientOwner& owner, std::size_t index) {
    auto post = std::make_unique<Post>(owner, index);
    Post* const added = post.get();
    accumulator.add_post_hook(std::move(post));
    return added;
  }

  static std::vector<Post*> on(const torch::autograd::Node& accumulator) {
    std::vector<Post*> found;
    for (const auto& hook : accumulator.post_hooks())
      if (auto* const post = dynamic_cast<Post*>(hook.get())) found.push_back(post);
    return found;
  }

  GradientOwner& owner;
  bool is_in_charge = false;

 private:
  const std::size_t index_;
};

GradientHook::GradientHook(const at::Tensor& parameter, GradientOwner& owner, std::size_t index)
    : accumulator_(torch::autograd::impl::grad_accumulator(parameter)),
      post_(Post::add_to(*accumulator_, owner, index)) {
  post_->is_in_charge = !has_others();
}

GradientHook::~GradientHook() {
  const bool was_in_charge = post_->is_in_charge;
  accumulator_->del_post_hook(reinterpret_cast<std::uintptr_t>(post_));
  const auto others = Post::on(*accumulator_);
  if (was_in_charge && !others.empty()) others.back()->is_in_charge = true;
}

bool GradientHook::is_in_charge() const { return post_->is_in_charge; }

void GradientHook::take_charge() {
  if (post_->is_in_charge) return;
  for (Post* const post : Post::on(*accumulator_)) post->is_in_charge = post == post_;
}

bool GradientHook::has_others() const { return Post::on(*accumulator_).size() > 1; }

bool GradientHook::is_allowed() const {
  const auto posts = Post::on(*accumulator_);
  return std::all_of(posts.begin(), posts.end(), [&](const Post* post) {
    return post == post_ || post->owner.allows_others();
  });
}

bool GradientHook::is_on(const at::Tensor& parameter) {
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  return accumulator != nullptr && !Post::on(*accumulator).empty();
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

std::unique_ptr<GradientHook> ParameterHooks::hook_on(std::size_t index) const {
  return std::make_unique<GradientHook>(parameters_[index].second, owner_, index);
}

// A frozen parameter has no accumulator.
void ParameterHooks::renew() {
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    const auto current = torch::autograd::impl::grad_accumulator(parameters_[i].second);
    if (current != nullptr && current.get() != hooks_[i]->accumulator()) hooks_[i] = hook_on(i);
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
  const bool everything = wanted == nullptr || wanted->empty();  // True in backward().
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    if (!is_in_charge(i) || !parameters_[i].second.requires_grad()) continue;
    if (everything) return true;
    const auto found = wanted->find(hooks_[i]->accumulator());
    if (found != wanted->end() && found->second.should_execute()) return true;
  }
  return false;
}

}  // namespace lockstep::parallel
