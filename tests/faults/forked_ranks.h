// Ranks that are plain forks of this process. They start in milliseconds, while a rank of
// tests/ranks.h loads LibTorch again. Only the forks may use LibTorch: its thread pool hangs in
// forks of a process that has used it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "tests/ranks.h"

namespace lockstep::test {

// Runs `body` in each rank, with the environment of init_process_group(). The ranks form a process
// group. Ranks that still run at the limit are killed.
std::vector<Exit> fork_ranks(int world_size, const Body& body,
                             std::chrono::milliseconds limit = std::chrono::seconds(60));

// Runs `body` in one fork, where it may use LibTorch. Fails the current test if `body` does.
void fork_once(const std::function<void()>& body);

}  // namespace lockstep::test
