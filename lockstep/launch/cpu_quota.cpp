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

// Whether `word` is one of those that commas separate.
bool lists(const std::string& text, std::string_view word) {
  std::istringstream words(text);
  for (std::string each; std::getline(words, each, ',');)
    if (each == word) return true;
  return false;
}

// One hierarchy of cgroups that limits CPU time, and where in it this process is.
struct Hierarchy {
  bool unified = false;    // Version 2.
  std::string group = {};  // Of the process.
  std::string root = {};   // The group that is mounted,
  fs::path mount = {};     // here.
};

// From lines "ID:CONTROLLERS:GROUP"; version 2's has no controllers.
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

// From lines "ID PARENT MAJOR:MINOR ROOT MOUNT OPTIONS [TAG...] - TYPE SOURCE OPTIONS".
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
    std::ifstream in(group / "cpu.max");  // "max 100000" when there is none; the root has no file.
    if (!(in >> quota >> period)) return std::nullopt;
  } else if (!(std::ifstream(group / "cpu.cfs_quota_us") >> quota) ||  // -1 when there is none.
             !(std::ifstream(group / "cpu.cfs_period_us") >> period)) {
    return std::nullopt;
  }
  return ratio(quota, period);
}

// The folders of the process's group and of those above it, down from the mounted one.
std::vector<fs::path> folders(const Hierarchy& hierarchy, const fs::path& root) {
  std::vector<fs::path> found{root / hierarchy.mount.relative_path()};
  const fs::path below = fs::path(hierarchy.group).lexically_relative(hierarchy.root);
  // In a container the path may be that of the host, which does not lead anywhere here.
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
