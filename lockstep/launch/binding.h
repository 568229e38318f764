// Plans ranks' cores, memory nodes and threads, within this process's affinity mask and CPU quota.

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
  // The kernel's numbers.
  int package = 0;
  int node = 0;  // NUMA node nearest to the core.
  int l3 = 0;    // hwloc's, unique on the host; -1 without an L3 cache.
  std::uint64_t l3_bytes = 0;
  std::vector<int> cpus = {};  // Ascending; several with hyperthreads.
};

struct Topology {
  std::vector<Core> cores = {};  // In the order of the machine's tree; at least one.
  int nodes = 1;                 // NUMA nodes.
};

// Ascending. Errors: system.
LOCKSTEP_API std::vector<int> affinity_mask();

// This host's topology within the mask, in about a millisecond. Temporarily changes the
// environment: no other thread may read it meanwhile. Errors: system.
LOCKSTEP_API Topology read_topology(const std::vector<int>& mask);

// For tests: from hwloc's synthetic description, such as "pack:2 numa:1 l3:2 core:4 pu:2".
Topology synthetic_topology(const std::string& description, const std::vector<int>& mask);

// The smallest CPU quota of this process's cgroup (v1 or v2) and its visible ancestors, in CPUs
// such as 2.5. Empty without a limit. `root` contains /proc and /sys.
LOCKSTEP_API std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

// By mask and quota; at least 1. Calls read_topology().
LOCKSTEP_API int usable_cores();

// --- Their division among the ranks --------------------------------------------------------------

struct RankBinding {
  std::vector<int> cpus = {};  // Logical processors of whole cores; empty if not bound.

  // Preferred NUMA node. Empty for an unbound rank, cores on several nodes, or a host with one.
  std::vector<int> memory_nodes = {};

  int threads = 1;  // For OMP_NUM_THREADS.
};

struct BindingPlan {
  std::vector<RankBinding> ranks;  // By local rank.
  std::string picture;             // Lines of packages, nodes and caches with their ranks.
};

// Errors: misuse without ranks, and for Binding::core and Binding::cache with more ranks than
// cores; read_topology()'s.
LOCKSTEP_API BindingPlan plan_binding(int ranks, Binding binding);

// `quota`: in CPUs.
BindingPlan plan_binding(const Topology& topology, std::optional<double> quota, int ranks,
                         Binding binding);

// As BindingPlan::picture, without the line about unbound ranks.
std::string picture_of(const Topology& topology, const std::vector<RankBinding>& ranks);

}  // namespace lockstep
