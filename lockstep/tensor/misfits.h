// What of a saved state does not fit, told all at once and before anything is changed.

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

  // Looks for the whole tensor `name`, of this type and these sizes, in `saved`. Returns null, and
  // has added why, when it is not there or is another.
  const StateTensor* find(const StateDict& saved, const std::string& name, at::ScalarType type,
                          at::IntArrayRef sizes);

  // Errors: misuse, with `what` and at most five of them, when there are any.
  void require_none(std::string_view what) const;

 private:
  std::vector<std::string> texts_;
};

}  // namespace lockstep
