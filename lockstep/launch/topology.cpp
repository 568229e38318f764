// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/topology.h"

#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>

#include "lockstep/base/error.h"

static_assert(HWLOC_API_VERSION >= 0x00020800, "hwloc 2.8 can leave out what costs time");

namespace lockstep {
namespace {

using Machine = std::unique_ptr<hwloc_topology, void (*)(hwloc_topology_t)>;

// hwloc's plugins look at devices. Their libraries (OpenCL's, X11's) take some 20 ms to load, and
// may start threads. A process that is about to fork must have no threads.
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
  const bool alone_ = std::getenv(variable) == nullptr;  // Otherwise the user's own value counts.
};

// Examines processors, caches and nodes only. Devices, and visits to every core, would take most of
// the time.
Machine load(const char* synthetic) {
  const WithoutPlugins only_what_is_built_in;
  hwloc_topology_t raw = nullptr;
  if (::hwloc_topology_init(&raw) != 0) throw_errno("hwloc_topology_init");
  Machine machine(raw, ::hwloc_topology_destroy);
  ::hwloc_topology_set_all_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_NONE);
  for (const auto type : {HWLOC_OBJ_PACKAGE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_CORE})
    ::hwloc_topology_set_type_filter(raw, type, HWLOC_TYPE_FILTER_KEEP_ALL);
  // A node that is neither a package nor a cache needs a group to be attached to.
  ::hwloc_topology_set_type_filter(raw, HWLOC_OBJ_GROUP, HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
  ::hwloc_topology_set_flags(
      raw, HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING | HWLOC_TOPOLOGY_FLAG_NO_DISTANCES |
               HWLOC_TOPOLOGY_FLAG_NO_MEMATTRS | HWLOC_TOPOLOGY_FLAG_NO_CPUKINDS);
  require(synthetic == nullptr || ::hwloc_topology_set_synthetic(raw, synthetic) == 0,
          "hwloc does not know such a machine");
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
  // Among several near nodes, the kernel numbers that of plain memory first.
  core.node = std::max(0, ::hwloc_bitmap_first(processor->nodeset));
  core.l3 = cache != nullptr ? static_cast<int>(cache->logical_index) : -1;
  if (cache != nullptr) core.l3_bytes = cache->attr->cache.size;
  return core;
}

Topology topology_of(hwloc_topology_t machine, const std::vector<int>& mask) {
  Topology topology;
  topology.nodes = ::hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_NUMANODE);
  hwloc_obj_t last = nullptr;  // Core of the latest processor.
  for (hwloc_obj_t processor = nullptr;
       (processor = ::hwloc_get_next_obj_by_type(machine, HWLOC_OBJ_PU, processor)) != nullptr;) {
    const int cpu = static_cast<int>(processor->os_index);
    if (!std::binary_search(mask.begin(), mask.end(), cpu)) continue;
    const hwloc_obj_t core = above(machine, HWLOC_OBJ_CORE, processor);
    // Where cores are not known, each processor counts as one.
    if (core == nullptr || core != last) topology.cores.push_back(core_of(machine, processor));
    topology.cores.back().cpus.push_back(cpu);
    last = core;
  }
  for (Core& core : topology.cores) std::sort(core.cpus.begin(), core.cpus.end());
  if (topology.cores.empty())
    throw Error(Fault::system, "hwloc knows none of the CPUs that this process may run on");
  return topology;
}

}  // namespace

std::vector<int> affinity_mask() {
  // A fixed cpu_set_t is too small for the largest hosts: the kernel then returns EINVAL.
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

}  // namespace lockstep
