// A hook on a parameter's gradient accumulator, and who of several that have one is in charge.
//
// A parameter that two modules share, an encoder's say, has one accumulator and one gradient. Where
// each module has a DistributedDataParallel, one of them is in charge of the gradient: otherwise it
// would be averaged twice. It is the one whose forward() was called last, as it takes charge then.
//
// Thread safety: none, but that the accumulator may call its hooks on autograd's thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>

namespace torch::autograd {
struct Node;
}

namespace lockstep {

// Averages gradients; it outlives its hooks.
class GradientOwner {
 public:
  // `.grad` of its parameter `index` is complete: `incoming`, or the sum of it and what there was
  // before. Called whoever is in charge.
  virtual void on_gradient(std::size_t index, const at::Tensor& incoming) = 0;

  // Whether another owner may be in charge of its gradients for a while.
  virtual bool allows_others() const = 0;

 protected:
  ~GradientOwner() = default;
};

class GradientHook {
 public:
  // In charge where nobody else is.
  GradientHook(const at::Tensor& parameter, GradientOwner& owner, std::size_t index);

  // Leaves the charge to another hook on the accumulator.
  ~GradientHook();
  GradientHook(const GradientHook&) = delete;
  GradientHook& operator=(const GradientHook&) = delete;

  bool is_in_charge() const;
  void take_charge();

  // Whether other owners have hooks on the accumulator, and whether all of them allow this one.
  bool has_others() const;
  bool is_allowed() const;

  // Whether anybody has a hook on the accumulator of `parameter`.
  static bool is_on(const at::Tensor& parameter);

  torch::autograd::Node* accumulator() const { return accumulator_.get(); }

 private:
  class Post;

  const c10::intrusive_ptr<torch::autograd::Node>
      accumulator_;   // Lives only as long as we hold it.
  Post* const post_;  // The accumulator's.
};

}  // namespace lockstep
