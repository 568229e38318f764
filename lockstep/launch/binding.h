// Which cores and which memory of the host each rank is bound to.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

struct Topology;

enum class Binding {
  automatic,  // As core where there is a core for each rank; else, and under a CPU quota, as none.
  numa,       // Each rank to all cores of a NUMA node; nodes are shared when there are fewer.
  core,       // Each rank to cores of its own, neighbours in the machine: of one L3, one NUMA node.
  none,       // No rank is bound.
};

struct RankBinding {
  std::vector<int> cpus = {};  // Logical processors of whole cores; not bound when empty.

  // The NUMA node its memory comes from first, where the host has several and its cores are all of
  // one. Not the only one: when that is full another is slower, but does not get the rank killed.
  std::vector<int> memory_nodes = {};

  int threads = 1;  // How many cores are its share: for OMP_NUM_THREADS.
};

struct BindingPlan {
  std::vector<RankBinding> ranks;  // By local rank.
  std::string picture;             // Packages, nodes and caches with the ranks in them; some lines.
};

// Of what this process may use: its affinity mask, and the CPU quota of its cgroups.
// Errors: misuse for no rank, and for Binding::core with more ranks than cores.
LOCKSTEP_API BindingPlan plan_binding(int ranks, Binding binding);

// The same for any machine and quota, in CPUs.
BindingPlan plan_binding(const Topology& topology, std::optional<double> quota, int ranks,
                         Binding binding);

// How many cores this process may use, by mask and quota; at least 1.
LOCKSTEP_API int usable_cores();

}  // namespace lockstep
