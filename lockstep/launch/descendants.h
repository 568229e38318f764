// Ends every process below this one.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <vector>

namespace lockstep {

// From now on a descendant whose parent has ended becomes a child of this process.
void adopt_orphans();

// Returns this process's current children, as listed in `proc`.
std::vector<pid_t> children(const std::filesystem::path& proc = "/proc");

// Kills and reaps this process's children except `spared`, then the orphans that it adopts by that,
// until none is left. SIGCHLD must be blocked, and adopt_orphans() called before.
// Returns false if some could not be ended by the limit: they are another user's, or stuck in the
// kernel.
bool end_descendants(std::chrono::milliseconds limit, const std::vector<pid_t>& spared = {});

}  // namespace lockstep
