// A hook on a parameter's gradient accumulator. If several owners have one, exactly one is in
// charge of the gradient.
//
// A parameter that two modules share, for example an encoder's, has one accumulator and one
// gradient. If each module has a DistributedDataParallel, only one may be in charge; otherwise the
// gradient would be averaged twice. The last called forward() takes charge.
//
// Thread safety: none, except that the accumulator may call its hooks on autograd's thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>

namespace torch::autograd {
struct Node;
}

namespace lockstep {

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

  const c10::intrusive_ptr<torch::autograd::Node>
      accumulator_;   // Lives only as long as we hold it.
  Post* const post_;  // Owned by the accumulator.
};

}  // namespace lockstep
