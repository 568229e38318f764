// Compares tensors in files with those of a model.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/weights.h"
#include "lockstep/tensor/weight_state.h"

namespace lockstep::checkpoint {

struct StoredForm {
  std::string name;  // Name in the file.
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> shape;  // After the transposition.
  bool is_transposed = false;
};

using StoredForms = std::map<std::string, StoredForm>;

// Returns tensors that keep their values. Errors: misuse, without the path.
std::vector<std::string> fit(const StoredForms& stored, const StateTargets& targets,
                             const LoadWeightsOptions& options);

// Pairs names of both lists, the closest first. The distance is the longer name's length without
// common prefix and suffix. Unpaired names follow, with an empty text.
std::vector<std::pair<std::string, std::string>> side_by_side(
    const std::vector<std::string>& missing, const std::vector<std::string>& surplus);

}  // namespace lockstep::checkpoint
