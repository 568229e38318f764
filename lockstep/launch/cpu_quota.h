// How much CPU time a process may use, whatever cores it runs on: the limit that containers and
// batch systems set on a cgroup.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>

#include "lockstep/base/api.h"

namespace lockstep {

// In CPUs, such as 2.5: the least of this process's cgroup and those above it, as far as they can
// be seen from here; empty when none has a limit. Of either version of cgroups. `root` is where
// /proc and /sys are looked for.
LOCKSTEP_API std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

}  // namespace lockstep
