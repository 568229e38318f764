// SPDX-License-Identifier: Apache-2.0
#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/launch/binding.h"

static_assert(HWLOC_API_VERSION >= 0x00020800, "hwloc 2.8 can leave out what costs time");

namespace lockstep {
namespace {

using Machine = std::unique_ptr<hwloc_topology, void (*)(hwloc_topology_t)>;

// hwloc's plugins load libraries (OpenCL's, X11's), in about 20 ms, which may start threads. A
// process that forks must have no others.
class WithoutPlugins {
 public:
  WithoutPlugins() {
    if (alone_) ::setenv(variable, "/dev/null", 1);
  }
  ~WithoutPlugins() {
    if (alone_) ::unsetenv(variable);
  }
  WithoutPlugins(const WithoutPlugins&) = delete;
  WithoutPlugins& operator=(const WithoutPlugins&) = delete;

 private:
  static constexpr const char* variable = "HWLOC_PLUGINS_PATH";
  const bool alone_ = std::getenv(variable) == nullptr;  // Otherwise keeps the user's value.
};

// Devices, and visits to every core, would take most of the time.
Machine load(const char* synthetic) {
  const WithoutPlugins only_what_is_built_in;
  hwloc_topology_t raw = nullptr;
  if (::hwloc_topology_init(&raw) != 0) throw_errno("hwloc_topology_init");
  Machine machine(raw, ::hwloc_topology_destroy);
  ::hwloc_topology_set_all_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_NONE);
  for (const auto type : {HWLOC_OBJ_PACKAGE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_CORE})
    ::hwloc_topology_set_type_filter(raw, type, HWLOC_TYPE_FILTER_KEEP_ALL);
  // A node that is neither a package nor a cache must be attached to a group.
  ::hwloc_topology_set_type_filter(raw, HWLOC_OBJ_GROUP, HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
  ::hwloc_topology_set_flags(
      raw, HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING | HWLOC_TOPOLOGY_FLAG_NO_DISTANCES |
               HWLOC_TOPOLOGY_FLAG_NO_MEMATTRS | HWLOC_TOPOLOGY_FLAG_NO_CPUKINDS);
  require(synthetic == nullptr || ::hwloc_topology_set_synthetic(raw, synthetic) == 0,
          "hwloc cannot read this description of a machine");
  if (::hwloc_topology_load(raw) != 0) throw_errno("hwloc_topology_load");
  return machine;
}

hwloc_obj_t above(hwloc_topology_t machine, hwloc_obj_type_t type, hwloc_obj_t object) {
  return ::hwloc_get_ancestor_obj_by_type(machine, type, object);
}

Core core_of(hwloc_topology_t machine, hwloc_obj_t processor) {
  Core core;
  const hwloc_obj_t package = above(machine, HWLOC_OBJ_PACKAGE, processor);
  const hwloc_obj_t cache = above(machine, HWLOC_OBJ_L3CACHE, processor);
  if (package != nullptr) core.package = static_cast<int>(package->os_index);
  // Among several near nodes, the kernel numbers the one with ordinary memory first.
  core.node = std::max(0, ::hwloc_bitmap_first(processor->nodeset));
  core.l3 = cache != nullptr ? static_cast<int>(cache->logical_index) : -1;
  if (cache != nullptr) core.l3_bytes = cache->attr->cache.size;
  return core;
}

Topology topology_of(hwloc_topology_t machine, const std::vector<int>& mask) {
  Topology topology;
  topology.nodes = ::hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_NUMANODE);
  hwloc_obj_t last = nullptr;
  for (hwloc_obj_t processor = nullptr;
       (processor = ::hwloc_get_next_obj_by_type(machine, HWLOC_OBJ_PU, processor)) != nullptr;) {
    const int cpu = static_cast<int>(processor->os_index);
    if (!std::binary_search(mask.begin(), mask.end(), cpu)) continue;
    const hwloc_obj_t core = above(machine, HWLOC_OBJ_CORE, processor);
    // If cores are unknown, each processor counts as one.
    if (core == nullptr || core != last) topology.cores.push_back(core_of(machine, processor));
    topology.cores.back().cpus.push_back(cpu);
    last = core;
  }
  for (Core& core : topology.cores) std::sort(core.cpus.begin(), core.cpus.end());
  if (topology.cores.empty())
    throw Error(Fault::system, "hwloc knows none of the CPUs that this process may run on");
  return topology;
}

namespace fs = std::filesystem;

bool lists(const std::string& text, std::string_view word) {
  std::istringstream words(text);
  for (std::string each; std::getline(words, each, ',');)
    if (each == word) return true;
  return false;
}

struct Hierarchy {
  bool unified = false;  // Version 2.
  std::string group = {};
  std::string root = {};  // The mounted group.
  fs::path mount = {};
};

// Lines "ID:CONTROLLERS:GROUP"; version 2's has no controllers.
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

// Lines "ID PARENT MAJOR:MINOR ROOT MOUNT OPTIONS [TAG...] - TYPE SOURCE OPTIONS".
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

// The process's group and its ancestors, from the mounted one down.
std::vector<fs::path> folders(const Hierarchy& hierarchy, const fs::path& root) {
  std::vector<fs::path> found{root / hierarchy.mount.relative_path()};
  const fs::path below = fs::path(hierarchy.group).lexically_relative(hierarchy.root);
  // In a container, the path may be the host's, absent here.
  if (below.empty() || *below.begin() == "..") return found;
  for (const fs::path& name : below)
    if (name != ".") found.push_back(found.back() / name);
  return found;
}

}  // namespace

std::vector<int> affinity_mask() {
  // On the largest hosts, a fixed cpu_set_t is too small: the kernel returns EINVAL.
  for (int capacity = CPU_SETSIZE; capacity <= 1 << 20; capacity *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(
        CPU_ALLOC(capacity), [](cpu_set_t* memory) { CPU_FREE(memory); });
    const std::size_t bytes = CPU_ALLOC_SIZE(capacity);
    if (::sched_getaffinity(0, bytes, set.get()) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    std::vector<int> cpus;
    for (int cpu = 0; cpu < capacity; ++cpu)
      if (CPU_ISSET_S(cpu, bytes, set.get())) cpus.push_back(cpu);
    return cpus;
  }
  throw_errno("sched_getaffinity");
}

Topology read_topology(const std::vector<int>& mask) {
  return topology_of(load(nullptr).get(), mask);
}

Topology synthetic_topology(const std::string& description, const std::vector<int>& mask) {
  return topology_of(load(description.c_str()).get(), mask);
}

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
