// All functions of an engine: its collectives, sub-groups, and communicators of two threads at
// once.
//
// For engines that know by themselves who a process is (identify); any launcher of theirs starts
// the ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/engines/engine_plugin.h"

namespace lockstep::test {

// Collective over `world`. Returns how many results were compared.
// Errors: std::runtime_error.
int check_engine(const lockstep_engine& engine, const World& world);

}  // namespace lockstep::test
