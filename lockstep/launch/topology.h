// The cores of this host that this process may use, and what they share.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/launch/binding.h"

namespace lockstep {

struct Core {
  int package = 0;  // These numbers are the kernel's, but for the caches',
  int node = 0;     // the NUMA node that its memory is nearest to,
  int l3 = 0;       // which are counted through the host; -1 when it has none.
  std::uint64_t l3_bytes = 0;
  std::vector<int> cpus = {};  // Its logical processors: several with hyperthreads. Rising.
};

struct Topology {
  std::vector<Core> cores = {};  // The machine's tree from left to right; at least one.
  int nodes = 1;                 // How many NUMA nodes the host has.
};

// The CPUs that this process may run on, in rising order. Errors: system.
LOCKSTEP_API std::vector<int> affinity_mask();

// This host's, without what is not in the mask. Takes about a millisecond. Changes the environment
// for a moment: no other thread may read it. Errors: system.
LOCKSTEP_API Topology read_topology(const std::vector<int>& mask);

// A machine as hwloc describes it, such as "pack:2 numa:1 l3:2 core:4 pu:2"; for tests.
Topology synthetic_topology(const std::string& description, const std::vector<int>& mask);

// The picture of a BindingPlan, without what is said of those that are not bound.
std::string picture_of(const Topology& topology, const std::vector<RankBinding>& ranks);

}  // namespace lockstep
