// The collectives of a communicator against the same computed serially, in place and not, with even
// and uneven parts.
//
// Both are collective over the communicator, and return how many results were compared.
// Errors: std::runtime_error, with what was called and where the result differs.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/engines/engine_plugin.h"

namespace lockstep::test {

// Of every dtype and reduction that the engine has, and of many sizes.
int check_collectives(const Communicator& communicator);

// Of 17 float32, which are summed.
int check_some_collectives(const Communicator& communicator);

}  // namespace lockstep::test
