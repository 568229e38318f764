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

// This process's children now, of the processes that `proc` shows.
std::vector<pid_t> children(const std::filesystem::path& proc = "/proc");

// Kills this process's children but those of `spared`, those that it then adopts, and so on, and
// reaps them all.
// SIGCHLD must be blocked and adopt_orphans() called. False when some could not be ended, or
// not by the limit: of another user, or stuck in the kernel.
bool end_descendants(std::chrono::milliseconds limit, const std::vector<pid_t>& spared = {});

}  // namespace lockstep
