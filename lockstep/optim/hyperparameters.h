// What an optimizer was told, by name.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/tensor/differences.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

// The optimizer's class, the number of its param groups, how many parameters each has and all that
// its options serialise: "param group 0: lr" is "0.001". Numbers are equal when their texts are.
// Errors: as archived_values() (optimizer_options.h), of which it takes the time.
Facts hyperparameters_of(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep
