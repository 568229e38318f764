// Hooks on the gradient accumulators of parameters.
//
// Two modules that share a parameter share its accumulator. If each has a DistributedDataParallel,
// only the owner whose forward() was called last is active and averages the gradient.
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
  // `.grad` of the owner's parameter `index` is complete: `incoming`, or its sum with the earlier
  // gradient. Called for active and inactive owners.
  virtual void on_gradient(std::size_t index, const at::Tensor& incoming) = 0;

  // Whether another owner may be active for its gradients.
  virtual bool allows_others() const = 0;

 protected:
  ~GradientOwner() = default;
};

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

  // Whether the accumulator has other owners' hooks, and whether all of them allow this one.
  bool has_others() const;
  bool is_allowed() const;

  static bool is_on(const at::Tensor& parameter);

  torch::autograd::Node* accumulator() const { return accumulator_.get(); }

 private:
  class Post;

  const NodePtr accumulator_;  // Exists only while referenced.
  Post* const post_;           // Owned by the accumulator.
};

// Whether this thread's backward() adds to any `.grad`. False in autograd::grad().
bool accumulates_gradients();

class ParameterHooks {
 public:
  // `parameters` and `owner` outlive this object.
  ParameterHooks(const NamedTensors& parameters, GradientOwner& owner);

  // Moves the hooks of parameters that torch::load() has given another accumulator.
  void renew();
  void take_charge() const;

  // For gradients of another shape: LibTorch renews accumulators only for another type or device.
  // Gradients of the earlier shape become undefined.
  void renew_accumulators();

  bool is_in_charge(std::size_t index) const { return hooks_[index]->is_in_charge(); }

  bool has_others() const;
  bool has_others(std::size_t index) const { return hooks_[index]->has_others(); }

  // Names of parameters that have another owner, if either owner does not allow that.
  std::string refused() const;

  // Whether this thread's backward() reaches a parameter for which the owner is active. False while
  // all are frozen, and in autograd::grad() on other tensors.
  bool are_reached() const;

 private:
  std::unique_ptr<GradientHook> hook_on(std::size_t index) const;

  const NamedTensors& parameters_;
  GradientOwner& owner_;
  std::vector<std::unique_ptr<GradientHook>> hooks_;
};

}  // namespace lockstep::parallel
