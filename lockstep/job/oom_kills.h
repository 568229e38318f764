// Counts the processes that the kernel's OOM killer has ended.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "lockstep/base/api.h"

namespace lockstep {

// Returns the count for this process's memory cgroup: `oom_kill` in memory.oom_control (v1) or
// memory.events (v2, with the groups below it). If neither is readable, the host's count from
// /proc/vmstat. Empty without any counter.
// A process may see its cgroup under another path than /proc/self/cgroup says, for example in a
// container. The nearest group above it that has the file then counts. `root` is the folder that
// contains /proc and /sys.
LOCKSTEP_API std::optional<std::uint64_t> oom_kills(const std::filesystem::path& root = "/");

}  // namespace lockstep
