// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/cpu_quota.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// True if `word` is one of the words that commas separate.
bool lists(const std::string& text, std::string_view word) {
  std::istringstream words(text);
  for (std::string each; std::getline(words, each, ',');)
    if (each == word) return true;
  return false;
}

// A hierarchy of cgroups that limits CPU time, and this process's place in it.
struct Hierarchy {
  bool unified = false;    // Version 2.
  std::string group = {};  // Group of the process.
  std::string root = {};   // Group that is mounted.
  fs::path mount = {};     // Where `root` is mounted.
};

// Reads lines "ID:CONTROLLERS:GROUP"; version 2's line has no controllers.
void find_groups(std::istream& in, Hierarchy& first, Hierarchy& second) {
  for (std::string line; std::getline(in, line);) {
    const auto colon = line.find(':');
    const auto next = colon == line.npos ? line.npos : line.find(':', colon + 1);
    if (next == line.npos) continue;
    const std::string controllers = line.substr(colon + 1, next - colon - 1);
    if (controllers.empty()) second.group = line.substr(next + 1);
    if (lists(controllers, "cpu")) first.group = line.substr(next + 1);
  }
}

// Reads lines "ID PARENT MAJOR:MINOR ROOT MOUNT OPTIONS [TAG...] - TYPE SOURCE OPTIONS".
void find_mounts(std::istream& in, Hierarchy& first, Hierarchy& second) {
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string id, parent, device, root, mount, word, type, source, options;
    words >> id >> parent >> device >> root >> mount;
    while (words >> word && word != "-") continue;
    words >> type >> source >> options;
    Hierarchy* hierarchy = nullptr;
    if (type == "cgroup2") hierarchy = &second;
    if (type == "cgroup" && lists(options, "cpu")) hierarchy = &first;
    if (hierarchy == nullptr || !hierarchy->mount.empty()) continue;
    hierarchy->root = root;
    hierarchy->mount = mount;
  }
}

std::optional<double> ratio(double quota, double period) {
  if (!(quota > 0) || !(period > 0)) return std::nullopt;
  return quota / period;
}

std::optional<double> limit_of(const fs::path& group, bool unified) {
  double quota = 0;
  double period = 0;
  if (unified) {
    std::ifstream in(group / "cpu.max");  // "max 100000" without a limit; the root has no file.
    if (!(in >> quota >> period)) return std::nullopt;
  } else if (!(std::ifstream(group / "cpu.cfs_quota_us") >> quota) ||  // -1 without a limit.
             !(std::ifstream(group / "cpu.cfs_period_us") >> period)) {
    return std::nullopt;
  }
  return ratio(quota, period);
}

// Returns the folders of the process's group and its ancestors, from the mounted one down.
std::vector<fs::path> folders(const Hierarchy& hierarchy, const fs::path& root) {
  std::vector<fs::path> found{root / hierarchy.mount.relative_path()};
  const fs::path below = fs::path(hierarchy.group).lexically_relative(hierarchy.root);
  // In a container the path may be the host's, which leads nowhere here.
  if (below.empty() || *below.begin() == "..") return found;
  for (const fs::path& name : below)
    if (name != ".") found.push_back(found.back() / name);
  return found;
}

}  // namespace

std::optional<double> cpu_quota(const fs::path& root) {
  Hierarchy first{.unified = false};
  Hierarchy second{.unified = true};
  std::ifstream groups(root / "proc/self/cgroup");
  find_groups(groups, first, second);
  std::ifstream mounts(root / "proc/self/mountinfo");
  find_mounts(mounts, first, second);

  std::optional<double> least;
  for (const Hierarchy& hierarchy : {first, second}) {
    if (hierarchy.mount.empty()) continue;
    for (const fs::path& folder : folders(hierarchy, root))
      if (const auto limit = limit_of(folder, hierarchy.unified))
        least = std::min(least.value_or(*limit), *limit);
  }
  return least;
}

}  // namespace lockstep
