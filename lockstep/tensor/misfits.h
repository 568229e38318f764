// Collects every mismatch between a saved state and its target, to report all at once before
// anything is changed.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/tensor/state.h"

namespace lockstep {

class Misfits {
 public:
  void add(std::string text) { texts_.push_back(std::move(text)); }

  // Finds the whole tensor `name`, of this type and these sizes, in `saved`. Returns null and adds
  // the reason if `saved` lacks it or has another type or shape.
  const StateTensor* find(const StateDict& saved, const std::string& name, at::ScalarType type,
                          at::IntArrayRef sizes);

  // Errors: misuse if there are misfits. The message has `what` and at most five of them.
  void require_none(std::string_view what) const;

 private:
  std::vector<std::string> texts_;
};

}  // namespace lockstep
