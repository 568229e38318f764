// Compares a communicator's collectives with serial computation: in place and out of place, with
// even and uneven parts.
//
// Both functions are collective over the communicator, and return the number of compared results.
// Errors: std::runtime_error, with the call and the position of the difference.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/engines/engine_plugin.h"

namespace lockstep::test {

// Checks every dtype and reduction of the engine, and many sizes.
int check_collectives(const Communicator& communicator);

// Checks sums of 17 float32.
int check_some_collectives(const Communicator& communicator);

}  // namespace lockstep::test
