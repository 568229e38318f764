// CPU time that a process may use, on any cores: the limit that containers and batch systems
// set on a cgroup.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>

#include "lockstep/base/api.h"

namespace lockstep {

// Returns the smallest limit, in CPUs such as 2.5, of this process's cgroup and its visible
// ancestors. Empty when none has a limit. Reads both versions of cgroups. `root` holds /proc and
// /sys.
LOCKSTEP_API std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

}  // namespace lockstep
