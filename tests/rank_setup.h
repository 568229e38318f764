// Common setup for a test's ranks: ranks.cpp starts them by exec, forked_ranks.cpp by fork only.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <vector>

#include "tests/ranks.h"

namespace lockstep::test {

// In a rank's new process: sets the variables of init_process_group(), with a unique job id, and
// redirects stdout and stderr to a file in rank.scratch. The kernel ends the process with its
// parent.
void set_up(const Rank& rank);

// Waits for the processes of a run's ranks, in rank order, and kills the remaining ones at the
// deadline. `scratch` is the ranks' own.
std::vector<Exit> wait_for_all(const std::vector<pid_t>& pids, const std::filesystem::path& scratch,
                               std::chrono::steady_clock::time_point deadline);

}  // namespace lockstep::test
