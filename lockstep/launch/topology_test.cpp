// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/topology.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "lockstep/base/error.h"

namespace lockstep::topology_test {
namespace {

std::vector<int> first_cpus(int count) {
  std::vector<int> cpus(static_cast<std::size_t>(count));
  std::iota(cpus.begin(), cpus.end(), 0);
  return cpus;
}

TEST(Topology, TheAffinityMaskIsWhatTheKernelSays) {
  cpu_set_t mask;
  ASSERT_EQ(::sched_getaffinity(0, sizeof mask, &mask), 0);
  const auto cpus = affinity_mask();
  EXPECT_EQ(static_cast<int>(cpus.size()), CPU_COUNT(&mask));
  for (const int cpu : cpus) EXPECT_TRUE(CPU_ISSET(cpu, &mask));
}

TEST(Topology, OfThisHostEachUsableCpuIsInOneCore) {
  std::vector<int> found;
  for (const Core& core : read_topology(affinity_mask()).cores)
    found.insert(found.end(), core.cpus.begin(), core.cpus.end());
  std::sort(found.begin(), found.end());
  EXPECT_EQ(found, affinity_mask());
}

TEST(Topology, ReadingItLeavesTheEnvironmentAndTheMaskAsTheyWere) {
  const auto mask = affinity_mask();
  read_topology(mask);
  EXPECT_EQ(affinity_mask(), mask);
  EXPECT_EQ(std::getenv("HWLOC_PLUGINS_PATH"), nullptr);
}

TEST(Topology, HyperthreadsAreOneCore) {
  const Topology machine = synthetic_topology("pack:1 core:2 pu:2", first_cpus(4));
  ASSERT_EQ(machine.cores.size(), 2U);
  EXPECT_EQ(machine.cores[0].cpus, (std::vector<int>{0, 1}));
  EXPECT_EQ(machine.cores[1].cpus, (std::vector<int>{2, 3}));
}

TEST(Topology, CoresKnowWhatTheyShare) {
  const Topology machine = synthetic_topology("pack:2 numa:2 l3:2 core:2 pu:1", first_cpus(16));
  ASSERT_EQ(machine.cores.size(), 16U);
  EXPECT_EQ(machine.nodes, 4);
  for (int i = 0; i < 16; ++i) {
    const Core& core = machine.cores[static_cast<std::size_t>(i)];
    EXPECT_EQ(core.package, i / 8);
    EXPECT_EQ(core.node, i / 4);
    EXPECT_EQ(core.l3, i / 2);
  }
}

TEST(Topology, WhatIsNotInTheMaskIsNotThere) {
  const Topology machine = synthetic_topology("pack:1 core:4 pu:2", {1, 4, 5});
  ASSERT_EQ(machine.cores.size(), 2U);
  EXPECT_EQ(machine.cores[0].cpus, std::vector<int>{1});
  EXPECT_EQ(machine.cores[1].cpus, (std::vector<int>{4, 5}));
}

TEST(Topology, AMaskOfUnknownCpusIsAnError) {
  EXPECT_THROW(synthetic_topology("pack:1 core:2 pu:1", {7}), Error);
}

TEST(Topology, WithoutAnL3ThereIsNone) {
  EXPECT_EQ(synthetic_topology("pack:1 core:2 pu:1", {0, 1}).cores[0].l3, -1);
}

}  // namespace
}  // namespace lockstep::topology_test
