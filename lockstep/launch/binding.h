// Binds ranks to cores and memory of the host, within this process's affinity mask and its cgroups'
// CPU quota.

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
  // Package and node have the kernel's numbers.
  int package = 0;
  int node = 0;  // NUMA node nearest to the core.
  int l3 = 0;    // Numbered across the host; -1 without an L3 cache.
  std::uint64_t l3_bytes = 0;
  std::vector<int> cpus = {};  // Its logical processors, ascending; several with hyperthreads.
};

struct Topology {
  std::vector<Core> cores = {};  // In the order of the machine's tree; at least one.
  int nodes = 1;                 // NUMA nodes of the host.
};

// Returns the CPUs that this process may run on, ascending. Errors: system.
LOCKSTEP_API std::vector<int> affinity_mask();

// Returns this host's topology, restricted to the mask. Takes about a millisecond. Temporarily
// changes the environment: no other thread may read it meanwhile. Errors: system.
LOCKSTEP_API Topology read_topology(const std::vector<int>& mask);

// Builds a machine from hwloc's synthetic description, such as "pack:2 numa:1 l3:2 core:4 pu:2";
// for tests.
Topology synthetic_topology(const std::string& description, const std::vector<int>& mask);

// Returns this process's CPU quota, in CPUs such as 2.5: the smallest limit of its cgroup and the
// visible ancestors. Empty without a limit. Reads both versions of cgroups. `root` contains /proc
// and /sys.
LOCKSTEP_API std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

// Number of cores that this process may use by mask and quota; at least 1.
LOCKSTEP_API int usable_cores();

// --- Their division among the ranks --------------------------------------------------------------

struct RankBinding {
  std::vector<int> cpus = {};  // Logical processors of whole cores; empty if not bound.

  // Preferred NUMA node for its memory; empty if the host has one node, or if its cores are on
  // several. If that node is full, memory comes from another one: slower, but the rank is not
  // killed.
  std::vector<int> memory_nodes = {};

  int threads = 1;  // Its share of cores, for OMP_NUM_THREADS.
};

struct BindingPlan {
  std::vector<RankBinding> ranks;  // Index: local rank.
  std::string picture;             // Several lines: packages, nodes and caches with their ranks.
};

// Plans within this process's affinity mask and its cgroups' CPU quota. Errors: misuse without
// ranks, and for Binding::core and Binding::cache with more ranks than cores.
LOCKSTEP_API BindingPlan plan_binding(int ranks, Binding binding);

// Plans for any machine and quota; the quota is in CPUs.
BindingPlan plan_binding(const Topology& topology, std::optional<double> quota, int ranks,
                         Binding binding);

// Returns the picture of a BindingPlan, without the lines about unbound ranks.
std::string picture_of(const Topology& topology, const std::vector<RankBinding>& ranks);

}  // namespace lockstep
