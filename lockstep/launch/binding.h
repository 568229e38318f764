// Binding of each rank to cores and memory of the host.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

struct Topology;

enum class Binding {
  automatic,  // `core` if there is a core for each rank and no CPU quota; else `none`.
  numa,  // Each rank is bound to all cores of a NUMA node; ranks share nodes if nodes are fewer.
  core,  // Each rank has its own cores, neighbours in the machine: same L3 cache, same NUMA node.
  none,  // No rank is bound.
};

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
// rank, and for Binding::core with more ranks than cores.
LOCKSTEP_API BindingPlan plan_binding(int ranks, Binding binding);

// Plans for any machine and quota; the quota is in CPUs.
BindingPlan plan_binding(const Topology& topology, std::optional<double> quota, int ranks,
                         Binding binding);

// Number of cores that mask and quota let this process use; at least 1.
LOCKSTEP_API int usable_cores();

}  // namespace lockstep
