// An engine's functions against the same computed serially: every dtype, reduction and size, even
// and uneven parts, in place and not, sub-groups, and communicators of two threads at once.
//
// For engines that know by themselves who a process is (identify); any launcher of theirs starts
// the ranks.
//
// Errors: std::runtime_error, with what was called and where the result differs.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/engine/engine_abi.h"

namespace lockstep::test {

// The engine in the plugin `path`.
const lockstep_engine& open_plugin(const char* path);

// A function of the ABI has returned `result`. Throws with `what` and the error's text unless it is 0.
void expect_success(int result, const char* what, const lockstep_engine_error& error);

struct World {
  int rank;
  int size;
  const void* handed_over;  // To the engine; null for all ranks.
};

World identify(const lockstep_engine& engine, const void* handed_over);

// Collective over `world`. Returns how many results were compared.
int check_engine(const lockstep_engine& engine, const World& world);

// The communicator `name` of all ranks, or of those that `members` lists by their rank in the world.
void* make_communicator(const lockstep_engine& engine, const World& world, const char* name);

}  // namespace lockstep::test
