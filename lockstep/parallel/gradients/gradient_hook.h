// Hooks on the gradient accumulators of parameters. If several owners have a hook on one, exactly
// one of them is in charge of the gradient.
//
// A parameter that two modules share, for example an encoder's, has one accumulator and one
// gradient. If each module has a DistributedDataParallel, only one may be in charge; otherwise the
// gradient would be averaged twice. The last called forward() takes charge.
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
  // Called when `.grad` of the owner's parameter `index` is complete: `incoming`, or its sum with
  // the earlier gradient. Called whether or not the owner is in charge.
  virtual void on_gradient(std::size_t index, const at::Tensor& incoming) = 0;

  // Whether another owner may temporarily be in charge of its gradients.
  virtual bool allows_others() const = 0;

 protected:
  ~GradientOwner() = default;
};

// The hook of one owner on one parameter.
class GradientHook {
 public:
  // Takes charge if no other hook is on the accumulator.
  GradientHook(const at::Tensor& parameter, GradientOwner& owner, std::size_t index);

  // If in charge, passes the charge to another hook on the accumulator.
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

  const NodePtr accumulator_;  // Lives only as long as we hold it.
  Post* const post_;           // Owned by the accumulator.
};

// The hooks of one owner on all of its parameters.
class ParameterHooks {
 public:
  // `parameters` and `owner` outlive this.
  ParameterHooks(const NamedTensors& parameters, GradientOwner& owner);

  // Follows parameters that torch::load() has given another accumulator.
  void renew();
  void take_charge() const;

  // Gives all parameters other accumulators, for gradients of another shape: LibTorch does so only
  // where the type or the device changes. A gradient of the earlier shape becomes undefined.
  void renew_accumulators();

  bool is_in_charge(std::size_t index) const { return hooks_[index]->is_in_charge(); }

  // Whether other owners have some of the parameters.
  bool has_others() const;
  bool has_others(std::size_t index) const { return hooks_[index]->has_others(); }

  // Names of parameters that others have, but that this owner or they do not share.
  std::string refused() const;

  // Whether any parameter that the owner is in charge of requires a gradient.
  bool can_be_reached() const;

  // Whether the backward() under way on this thread reaches a parameter that the owner is in charge
  // of. False while all are frozen, and for autograd::grad() on other tensors: a GAN's
  // discriminator in its generator's step, and a gradient penalty.
  bool are_reached() const;

 private:
  std::unique_ptr<GradientHook> hook_on(std::size_t index) const;

  const NamedTensors& parameters_;
  GradientOwner& owner_;
  std::vector<std::unique_ptr<GradientHook>> hooks_;
};

}  // namespace lockstep::parallel
