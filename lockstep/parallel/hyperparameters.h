// What an optimizer was told, by name.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/parallel/differences.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

// The optimizer's class, the number of its param groups, how many parameters each has and all that
// its options serialise: "param group 0: lr" is "0.001". Numbers are equal when their texts are.
// Options that do not override serialize() are their learning rate alone.
// Takes 0.1 ms for one group and 0.06 ms for each further one (measured), as only an archive tells
// names and values.
// Errors: unsupported for options that override neither serialize() nor get_lr().
Facts hyperparameters_of(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep
