// Describes differences between ranks, and between a saved state and its target.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

class ProcessGroup;

// Names with values, without zero bytes.
using Facts = std::vector<std::pair<std::string, std::string>>;

std::string encode(const Facts& facts);
Facts decode_facts(std::string_view text);

// Collective. `call` names the caller.
LOCKSTEP_API std::vector<Facts> gather(const Facts& facts, const ProcessGroup& group,
                                       std::string_view call);

// A line per name whose values differ. facts[r] are rank r's; a missing name has the value "none".
// Beyond eight lines, the last one counts the rest. Example:
//   param group 0: lr 0.001 on ranks 0, 2; 0.01 on rank 1
LOCKSTEP_API std::vector<std::string> differing_values(const std::vector<Facts>& facts);

// One line for all names whose values divide the ranks alike, the largest set last. Example:
//   rank 1 differs from ranks 0, 2 in 7 tensors: a.weight, a.bias, b.weight and 4 more
std::vector<std::string> differing_tensors(const std::vector<Facts>& facts);

// Collects mismatches between a saved state and its target, to report them before any change.
class LOCKSTEP_API Mismatches {
 public:
  void add(std::string text) { texts_.push_back(std::move(text)); }

  // Finds the whole tensor `name` in `saved`. Null, with the reason added, if `saved` lacks it or
  // has another type or shape.
  const StateTensor* find(const StateDict& saved, const std::string& name, at::ScalarType type,
                          at::IntArrayRef sizes);

  // Errors: misuse, with `what` and up to five mismatches.
  void require_none(std::string_view what) const;

 private:
  std::vector<std::string> texts_;
};

}  // namespace lockstep
