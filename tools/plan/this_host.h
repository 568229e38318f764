// This host's memory and network, for a plan.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>

namespace lockstep::tools {

// In bytes; or the lower limit of this process's memory cgroup.
double memory_of_this_host();

// Bytes per second of the fastest active interface of known speed. `root` contains /sys.
std::optional<double> link_of_this_host(const std::filesystem::path& root = "/");

}  // namespace lockstep::tools
