// How often the kernel has killed a process for want of memory.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "lockstep/base/api.h"

namespace lockstep {

// In this process's memory cgroup: `oom_kill` of memory.oom_control (v1) or memory.events (v2, of
// the groups below it as well); when neither can be read, on this host, from /proc/vmstat. Empty
// when nobody counts. A process may see its cgroup under another path than /proc/self/cgroup says,
// in a container say: then the nearest group above it counts that has the file.
// `root` is where to look for /proc and /sys.
LOCKSTEP_API std::optional<std::uint64_t> oom_kills(const std::filesystem::path& root = "/");

}  // namespace lockstep
