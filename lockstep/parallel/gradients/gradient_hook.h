// Hooks on the gradient accumulators of parameters.
//
// Modules that share a parameter share its accumulator. If each has a DistributedDataParallel, only
// the owner whose forward() was last called outside no_sync() is active and averages the gradient.
//
// Thread safety: none, but hooks may run on autograd's thread.

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

// Averages gradients.
class GradientOwner {
 public:
  // LibTorch has made `incoming` the `.grad` of parameter `index`, or added it there. Called for
  // active and inactive owners.
  virtual void on_gradient(std::size_t index, const at::Tensor& incoming) = 0;

  // Whether these parameters may have other owners, too.
  virtual bool allows_others() const = 0;

 protected:
  ~GradientOwner() = default;
};

bool has_gradient_hook(const at::Tensor& parameter);

// Whether this thread's backward() adds to a `.grad`; autograd::grad() does not.
bool accumulates_gradients();

// An owner's hooks, one per parameter.
class ParameterHooks {
 public:
  // `parameters` and `owner` outlive this object. The owner becomes active for parameters without
  // other hooks.
  ParameterHooks(const NamedTensors& parameters, GradientOwner& owner);

  // Another owner with a hook becomes active instead.
  ~ParameterHooks();
  ParameterHooks(const ParameterHooks&) = delete;
  ParameterHooks& operator=(const ParameterHooks&) = delete;

  // Moves hooks to new accumulators, such as after torch::load().
  void renew();
  void take_charge() const;

  // For gradients of another shape: LibTorch renews accumulators only for another type or device.
  // Earlier gradients of the old shape become undefined.
  void renew_accumulators();

  bool is_in_charge(std::size_t index) const;
  std::vector<bool> in_charge() const;

  bool has_others() const;
  bool has_others(std::size_t index) const;

  // Names of parameters with another owner, unless all owners allow that.
  std::string refused() const;

  // Whether this thread's backward() may reach a parameter for which the owner is active. False in
  // autograd::grad() on other tensors.
  bool are_reached() const;

 private:
  class Hook;
  struct Remove {
    void operator()(Hook* hook) const noexcept;
  };
  using OwnHook = std::unique_ptr<Hook, Remove>;  // The accumulator owns the object.

  static std::vector<Hook*> hooks_on(const torch::autograd::Node& accumulator);
  friend bool has_gradient_hook(const at::Tensor& parameter);
  OwnHook hook_on(std::size_t index) const;

  const NamedTensors& parameters_;
  GradientOwner& owner_;
  std::vector<OwnHook> hooks_;
};

}  // namespace lockstep::parallel
