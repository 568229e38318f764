// Cores of this host that this process may use, and what they share.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/launch/binding.h"

namespace lockstep {

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

// The CPUs that this process may run on, in rising order. Errors: system.
LOCKSTEP_API std::vector<int> affinity_mask();

// Returns this host's topology without what is not in the mask. Takes about a millisecond. Changes
// the environment for a moment: no other thread may read it then. Errors: system.
LOCKSTEP_API Topology read_topology(const std::vector<int>& mask);

// Builds a machine from hwloc's description, such as "pack:2 numa:1 l3:2 core:4 pu:2"; for tests.
Topology synthetic_topology(const std::string& description, const std::vector<int>& mask);

// Draws the picture of a BindingPlan, without the lines about ranks that are not bound.
std::string picture_of(const Topology& topology, const std::vector<RankBinding>& ranks);

}  // namespace lockstep
