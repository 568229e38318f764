// This host, for a plan: its memory and its network.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>

namespace lockstep::tools {

// Bytes: all of the host, or the limit of this process's memory cgroup if that is less.
double memory_of_this_host();

// Bytes a second of the fastest interface that is up and tells its speed. `root` is the folder that
// contains /sys.
std::optional<double> link_of_this_host(const std::filesystem::path& root = "/");

}  // namespace lockstep::tools
