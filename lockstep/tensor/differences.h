// Describes differences between ranks, and between a saved state and its target.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/tensor/state.h"

namespace lockstep {

class ProcessGroup;

// Names with their values as text. No text holds a zero byte.
using Facts = std::vector<std::pair<std::string, std::string>>;

// Converts facts to one byte string and back.
std::string encode(const Facts& facts);
Facts decode_facts(std::string_view text);

// Collective: the facts of all ranks. `call` names the caller.
std::vector<Facts> gather(const Facts& facts, const ProcessGroup& group, std::string_view call);

// Returns a line for each name whose values differ, for example
//   param group 0: lr 0.001 on ranks 0, 2; 0.01 on rank 1
// facts[r] are those of rank r. A name that a rank lacks has the value "none". Returns at most
// eight lines; the last one then counts the rest.
std::vector<std::string> differing_values(const std::vector<Facts>& facts);

// One line for all names whose values divide the ranks in the same way, for example
//   rank 1 differs from ranks 0, 2 in 7 tensors: a.weight, a.bias, b.weight and 4 more
// The largest set of ranks comes last.
std::vector<std::string> differing_tensors(const std::vector<Facts>& facts);

// Collects all mismatches between a saved state and its target, to report them together before any
// change.
class Mismatches {
 public:
  void add(std::string text) { texts_.push_back(std::move(text)); }

  // Finds the whole tensor `name`, of this type and these sizes, in `saved`. Returns null and adds
  // the reason if `saved` lacks it or has another type or shape.
  const StateTensor* find(const StateDict& saved, const std::string& name, at::ScalarType type,
                          at::IntArrayRef sizes);

  // Errors: misuse if there are mismatches. The message contains `what` and at most five of them.
  void require_none(std::string_view what) const;

 private:
  std::vector<std::string> texts_;
};

}  // namespace lockstep
