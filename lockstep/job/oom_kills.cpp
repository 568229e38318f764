// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/oom_kills.h"

#include <fmt/format.h>

#include <fstream>
#include <string>
#include <string_view>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// The value of `oom_kill` in a file of lines "key value".
std::optional<std::uint64_t> count_in(const fs::path& file) {
  std::ifstream in(file);
  std::string key;
  for (std::uint64_t value = 0; in >> key >> value;)
    if (key == "oom_kill") return value;
  return std::nullopt;
}

// Reads the group at `path` below `mount`, or the nearest group above it that has the file.
std::optional<std::uint64_t> count_of(const fs::path& mount, fs::path path, const char* file) {
  for (path = path.relative_path();; path = path.parent_path()) {
    if (const auto count = count_in(mount / path / file)) return count;
    if (path.empty()) return std::nullopt;
  }
}

// A line of /proc/self/cgroup is ID:CONTROLLERS:PATH; see cgroups(7).
bool names_memory(std::string_view controllers) {
  return fmt::format(",{},", controllers).find(",memory,") != std::string::npos;
}

std::optional<std::uint64_t> count_of_own_group(const fs::path& root) {
  std::ifstream in(root / "proc/self/cgroup");
  std::optional<std::uint64_t> unified;
  for (std::string line; std::getline(in, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path path = line.substr(second + 1);
    if (names_memory(controllers)) {  // The unified hierarchy then lacks that controller.
      if (const auto count = count_of(root / "sys/fs/cgroup/memory", path, "memory.oom_control"))
        return count;
    } else if (controllers.empty()) {
      unified = count_of(root / "sys/fs/cgroup", path, "memory.events");
    }
  }
  return unified;
}

}  // namespace

std::optional<std::uint64_t> oom_kills(const fs::path& root) {
  if (const auto count = count_of_own_group(root)) return count;
  return count_in(root / "proc/vmstat");
}

}  // namespace lockstep
