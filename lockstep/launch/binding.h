// Binding of each rank to cores and memory of the host, within this process's affinity mask and the
// CPU quota of its cgroups.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/launch/run.h"

namespace lockstep {

// --- Cores that this process may use -------------------------------------------------------------

struct Core {
  // Numbers of package and node are the kernel's.
  int package = 0;
  int node = 0;  // NUMA node nearest to the core.
  int l3 = 0;    // Counted through the host; -1 when it has no L3 cache.
  std::uint64_t l3_bytes = 0;
  std::vector<int> cpus = {};  // Its logical processors, rising; several with hyperthreads.
};

struct Topology {
  std::vector<Core> cores = {};  // The machine's tree from left to right; at least one.
  int nodes = 1;                 // NUMA nodes of the host.
};

// Returns the CPUs that this process may run on, in rising order. Errors: system.
LOCKSTEP_API std::vector<int> affinity_mask();

// Returns this host's topology without what is not in the mask. Takes about a millisecond. Changes
// the environment for a moment: no other thread may read it then. Errors: system.
LOCKSTEP_API Topology read_topology(const std::vector<int>& mask);

// Builds a machine from hwloc's description, such as "pack:2 numa:1 l3:2 core:4 pu:2"; for tests.
Topology synthetic_topology(const std::string& description, const std::vector<int>& mask);

// Returns the CPU time that this process may use, on any cores, in CPUs such as 2.5: the smallest
// limit of its cgroup and the visible ancestors. Empty when none has a limit. Reads both versions
// of cgroups. `root` holds /proc and /sys.
LOCKSTEP_API std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

// Number of cores that mask and quota let this process use; at least 1.
LOCKSTEP_API int usable_cores();

// --- Their division among the ranks --------------------------------------------------------------

struct RankBinding {
  std::vector<int> cpus = {};  // Logical processors of whole cores; empty if not bound.

  // NUMA node that its memory is taken from first; empty if the host has one node, or if its cores
  // are of several. When that node is full, memory comes from another one: slower, but the rank is
  // not killed.
  std::vector<int> memory_nodes = {};

  int threads = 1;  // Number of cores that are its share, for OMP_NUM_THREADS.
};

struct BindingPlan {
  std::vector<RankBinding> ranks;  // Index: local rank.
  std::string picture;             // Some lines: packages, nodes and caches with the ranks in them.
};

// Plans within this process's affinity mask and the CPU quota of its cgroups. Errors: misuse for no
// rank, and for Binding::core and Binding::cache with more ranks than cores.
LOCKSTEP_API BindingPlan plan_binding(int ranks, Binding binding);

// Plans for any machine and quota; the quota is in CPUs.
BindingPlan plan_binding(const Topology& topology, std::optional<double> quota, int ranks,
                         Binding binding);

// Draws the picture of a BindingPlan, without the lines about ranks that are not bound.
std::string picture_of(const Topology& topology, const std::vector<RankBinding>& ranks);

}  // namespace lockstep
