// The options of a param group as named plain values: those that serialize() writes or, without an
// override of it, the learning rate. Names in a nested archive contain a dot: "warmup.steps". A
// call takes about 0.1 ms.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/tensor/differences.h"
#include "lockstep/tensor/state_types.h"

namespace lockstep {

// In archive order. Errors: unsupported for options that override neither serialize() nor get_lr().
std::vector<std::pair<std::string, c10::IValue>> archived_values(
    const torch::optim::OptimizerOptions& options);

// A tuple of doubles, such as betas, becomes a vector.
// Omits an optional without a value.
// Errors: also unsupported for a value that is not a StateValue.
LOCKSTEP_API StateValues state_values_of(const torch::optim::OptimizerOptions& options);

// Sentences that explain why `values` do not fit. Values that are None in `options` may be missing.
std::vector<std::string> mismatches_of(const torch::optim::OptimizerOptions& options,
                                       const StateValues& values);

// An option that is None, and missing in `values`, stays None. Errors: misuse for the first of
// mismatches_of(); unsupported for a class that cannot load its options.
LOCKSTEP_API void set_state_values(torch::optim::OptimizerOptions& options,
                                   const StateValues& values);

// An optimizer's hyperparameters by name, as texts that ranks can compare: class, number of param
// groups, parameters per group, and archived_values(). Numbers are equal if their texts are.
// Errors and cost: as archived_values().
Facts hyperparameters_of(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep
