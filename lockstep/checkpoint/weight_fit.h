// Whether tensors in files fit those of a model, and the message if they do not.

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
  std::string name;  // In the file.
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> shape;  // After the transposition.
  bool is_transposed = false;       // NameTable asks for it.
};

// By name in the model.
using StoredForms = std::map<std::string, StoredForm>;

// Returns the names of the model's tensors that keep their values.
// Errors: misuse, without the path.
std::vector<std::string> fit(const StoredForms& stored, const StateTargets& targets,
                             const LoadWeightsOptions& options);

// Names of both lists in lines, the closest pairs first. The distance of two names is the length of
// what remains of the longer one without their common beginning and end. Names without a partner
// follow. An empty text stands for a missing partner.
std::vector<std::pair<std::string, std::string>> side_by_side(
    const std::vector<std::string>& missing, const std::vector<std::string>& surplus);

}  // namespace lockstep::checkpoint
