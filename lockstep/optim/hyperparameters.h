// The hyperparameters of an optimizer, by name.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/tensor/differences.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

// Returns the optimizer's class, the number of its param groups, the number of parameters in each,
// and all serialised options: "param group 0: lr" is "0.001". Numbers are equal if their texts are.
// Errors: as archived_values() (optimizer_options.h). Takes as long as that function.
Facts hyperparameters_of(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep
