// The options of a param group as named plain values: those that they write to an archive. Options
// that do not override serialize() have only their learning rate. Names in a nested archive contain
// a dot, for example "warmup.steps". A call takes about 0.1 ms.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/tensor/differences.h"
#include "lockstep/tensor/state_types.h"

namespace lockstep {

// In the order of the archive. Errors: unsupported for options that override neither serialize()
// nor get_lr().
std::vector<std::pair<std::string, c10::IValue>> archived_values(
    const torch::optim::OptimizerOptions& options);

// A tuple of numbers, such as betas, becomes a vector of doubles. Omits an optional without a
// value. Errors: also unsupported, naming it, for a value that is not a StateValue.
StateValues state_values_of(const torch::optim::OptimizerOptions& options);

// Sentences that explain why `values` are not from options of this type. Values that are None in
// `options` may be missing.
std::vector<std::string> mismatches_of(const torch::optim::OptimizerOptions& options,
                                       const StateValues& values);

// An option that is None and has no value stays None. Errors: misuse for the first of
// mismatches_of(); unsupported for read-only options.
void set_state_values(torch::optim::OptimizerOptions& options, const StateValues& values);

// The hyperparameters of an optimizer, by name, as texts that ranks can compare: class, number of
// param groups, parameters per group, and all serialised options. Numbers are equal if their texts
// are. Errors and cost: as archived_values().
Facts hyperparameters_of(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep
