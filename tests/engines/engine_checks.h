// Checks of all functions of an engine: collectives, sub-groups, and two threads with
// communicators.
//
// For engines with identify(), whose own launcher starts the ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/engines/engine_plugin.h"

namespace lockstep::test {

// Collective over `world`. Returns the number of compared results.
// Errors: std::runtime_error.
int check_engine(const lockstep_engine& engine, const World& world);

}  // namespace lockstep::test
