// The hooks of one GradientOwner, on all of its parameters.
//
// Thread safety: as GradientHook.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/gradients/gradient_hook.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

class ParameterHooks {
 public:
  // `parameters` and `owner` outlive this.
  ParameterHooks(const NamedTensors& parameters, GradientOwner& owner);

  // Follows parameters that torch::load() has given another accumulator.
  void renew();
  void take_charge() const;

  bool is_in_charge(std::size_t index) const { return hooks_[index]->is_in_charge(); }

  // Whether other owners have some of the parameters.
  bool has_others() const;
  bool has_others(std::size_t index) const { return hooks_[index]->has_others(); }

  // Names of parameters that others have, but that this owner or they do not share.
  std::string refused() const;

  // Whether the backward() under way on this thread reaches a parameter that the owner is in charge
  // of. Not so where all are frozen for the time being, and for autograd::grad() with respect to
  // other tensors: a GAN's discriminator in its generator's step, and a gradient penalty.
  bool are_reached() const;

 private:
  std::unique_ptr<GradientHook> hook_on(std::size_t index) const;

  const NamedTensors& parameters_;
  GradientOwner& owner_;
  std::vector<std::unique_ptr<GradientHook>> hooks_;
};

}  // namespace lockstep
