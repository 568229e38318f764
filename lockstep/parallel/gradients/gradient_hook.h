// Hooks on the gradient accumulators of parameters. If several owners have a hook on one
// accumulator, exactly one owner is active and averages the gradient.
//
// A parameter that two modules share, for example an encoder's, has one accumulator and one
// gradient. If each module has a DistributedDataParallel, a second owner would average the gradient
// twice. The owner whose forward() was called last is active.
//
// Thread safety: none, except that the accumulator may call its hooks on autograd's thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/torch_version.h"

namespace torch::autograd {
struct Node;
}

namespace lockstep::parallel {

// Averages gradients. Lifetime: outlives its hooks.
class GradientOwner {
 public:
  // Called when `.grad` of the owner's parameter `index` is complete: it is `incoming`, or its sum
  // with the earlier gradient. Called for active and inactive owners.
  virtual void on_gradient(std::size_t index, const at::Tensor& incoming) = 0;

  // Whether another owner may temporarily be active for its gradients.
  virtual bool allows_others() const = 0;

 protected:
  ~GradientOwner() = default;
};

// The hook of one owner on one parameter.
class GradientHook {
 public:
  // Becomes active if no other hook is on the accumulator.
  GradientHook(const at::Tensor& parameter, GradientOwner& owner, std::size_t index);

  // If active, activates another hook on the accumulator.
  ~GradientHook();
  GradientHook(const GradientHook&) = delete;
  GradientHook& operator=(const GradientHook&) = delete;

  bool is_in_charge() const;
  void take_charge();

  // Whether other owners have hooks on the accumulator, and whether all of them allow this one.
  bool has_others() const;
  bool is_allowed() const;

  // Whether the accumulator of `parameter` has any such hook.
  static bool is_on(const at::Tensor& parameter);

  torch::autograd::Node* accumulator() const { return accumulator_.get(); }

 private:
  class Post;

  const NodePtr accumulator_;  // Exists only while referenced.
  Post* const post_;           // Owned by the accumulator.
};

// Whether the current backward() on this thread adds to the `.grad` of any tensor. False in
// autograd::grad().
bool accumulates_gradients();

// The hooks of one owner on all of its parameters.
class ParameterHooks {
 public:
  // `parameters` and `owner` outlive this object.
  ParameterHooks(const NamedTensors& parameters, GradientOwner& owner);

  // Moves the hooks of parameters that torch::load() has given another accumulator.
  void renew();
  void take_charge() const;

  // Gives all parameters new accumulators, for gradients of another shape. LibTorch does so only if
  // the type or the device changes. A gradient of the earlier shape becomes undefined.
  void renew_accumulators();

  bool is_in_charge(std::size_t index) const { return hooks_[index]->is_in_charge(); }

  // Whether other owners have some of the parameters.
  bool has_others() const;
  bool has_others(std::size_t index) const { return hooks_[index]->has_others(); }

  // Names of parameters that have another owner, if this owner or the other does not allow that.
  std::string refused() const;

  // Whether the current backward() on this thread reaches a parameter for which the owner is
  // active. False while all are frozen, for example in a GAN generator's step for the
  // discriminator. Also false for autograd::grad() on other tensors, for example a gradient
  // penalty.
  bool are_reached() const;

 private:
  std::unique_ptr<GradientHook> hook_on(std::size_t index) const;

  const NamedTensors& parameters_;
  GradientOwner& owner_;
  std::vector<std::unique_ptr<GradientHook>> hooks_;
};

}  // namespace lockstep::parallel
