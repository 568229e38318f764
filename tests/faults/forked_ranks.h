// Ranks that are plain forks of this process: they start in milliseconds, where a rank of
// tests/ranks.h loads LibTorch anew. This process must not use LibTorch itself, as its thread pool
// hangs in a fork; so do tests that fork.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "tests/ranks.h"

namespace lockstep::test {

// Runs `body` in each, with the environment of init_process_group(). They are a process group of
// their own. At the limit the rest are killed.
std::vector<Exit> fork_ranks(int world_size, const Body& body,
                             std::chrono::milliseconds limit = std::chrono::seconds(60));

// One, for what uses LibTorch. Fails the current test when `body` does.
void fork_once(const std::function<void()>& body);

}  // namespace lockstep::test
