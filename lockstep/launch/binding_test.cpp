// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/binding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "lockstep/base/error.h"

namespace lockstep::launch::binding_test {
namespace {

using Cpus = std::vector<int>;

Cpus first_cpus(int count) {
  Cpus cpus(static_cast<std::size_t>(count));
  std::iota(cpus.begin(), cpus.end(), 0);
  return cpus;
}

Topology machine(const std::string& description, int cpus) {
  return synthetic_topology(description, first_cpus(cpus));
}

BindingPlan plan(const Topology& topology, int ranks, Binding binding = Binding::core,
                 std::optional<double> quota = {}) {
  return plan_binding(topology, quota, ranks, binding);
}

std::vector<Cpus> cpus_of(const BindingPlan& plan) {
  std::vector<Cpus> cpus;
  for (const RankBinding& rank : plan.ranks) cpus.push_back(rank.cpus);
  return cpus;
}

std::vector<int> threads_of(const BindingPlan& plan) {
  std::vector<int> threads;
  for (const RankBinding& rank : plan.ranks) threads.push_back(rank.threads);
  return threads;
}

std::size_t nodes_of(const Topology& topology, const RankBinding& rank) {
  std::set<int> nodes;
  for (const Core& core : topology.cores)
    if (std::binary_search(rank.cpus.begin(), rank.cpus.end(), core.cpus[0]))
      nodes.insert(core.node);
  return nodes.size();
}
std::size_t caches_of(const Topology& topology, const RankBinding& rank) {
  std::set<int> caches;
  for (const Core& core : topology.cores)
    if (std::binary_search(rank.cpus.begin(), rank.cpus.end(), core.cpus[0]))
      caches.insert(core.l3);
  return caches.size();
}

TEST(Binding, EveryCoreIsGivenOnceAndWholeAndSharesDifferByOneAtMost) {
  for (const auto& [description, cpus] : {std::pair{"pack:2 numa:2 l3:2 core:4 pu:2", 64},
                                          {"pack:1 l3:3 core:3 pu:1", 9},
                                          {"pack:2 core:3 pu:2", 12},
                                          {"core:1 pu:1", 1}}) {
    const Topology topology = machine(description, cpus);
    const int cores = static_cast<int>(topology.cores.size());
    for (int ranks = 1; ranks <= cores; ++ranks) {
      const BindingPlan bound = plan(topology, ranks);
      Cpus given;
      for (const RankBinding& rank : bound.ranks) {
        EXPECT_GE(rank.threads, cores / ranks);
        EXPECT_LE(rank.threads, cores / ranks + 1);
        EXPECT_EQ(static_cast<int>(rank.cpus.size()), rank.threads * cpus / cores);
        given.insert(given.end(), rank.cpus.begin(), rank.cpus.end());
      }
      std::sort(given.begin(), given.end());
      EXPECT_EQ(given, first_cpus(cpus)) << description << ", " << ranks << " ranks";
    }
  }
}

TEST(Binding, NeighboursInTheMachineGoToOneRank) {
  const Topology topology = machine("pack:2 numa:1 l3:2 core:2 pu:1", 8);
  EXPECT_EQ(cpus_of(plan(topology, 2)), (std::vector<Cpus>{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(cpus_of(plan(topology, 4)), (std::vector<Cpus>{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
}

TEST(Binding, ARankStraddlesNeitherNodesNorCachesWhenTheCountsDivide) {
  const Topology topology = machine("pack:2 numa:2 l3:2 core:8 pu:2", 128);
  for (const int ranks : {4, 8, 16, 32, 64})
    for (const RankBinding& rank : plan(topology, ranks).ranks) {
      EXPECT_EQ(nodes_of(topology, rank), 1U) << ranks << " ranks";
      EXPECT_EQ(caches_of(topology, rank), ranks >= 8 ? 1U : 2U) << ranks << " ranks";
    }
}

TEST(Binding, TheLargerSharesAreWhereNobodyStraddlesForThem) {
  // Cut into {2, 1, 2 | 2, 1} or similar, never across the border.
  const Topology topology = synthetic_topology("numa:2 core:5 pu:1", {0, 1, 2, 3, 4, 5, 6, 7});
  const BindingPlan bound = plan(topology, 5);
  EXPECT_EQ(cpus_of(bound), (std::vector<Cpus>{{0, 1}, {2, 3}, {4}, {5, 6}, {7}}));
  for (const RankBinding& rank : bound.ranks) EXPECT_EQ(nodes_of(topology, rank), 1U);
}

TEST(Binding, ANodeIsKeptTogetherRatherThanACache) {
  // The node's border is after two cores, the cache's after three.
  Topology topology{.cores = {}, .nodes = 2};
  for (int i = 0; i < 5; ++i)
    topology.cores.push_back({.node = i < 2 ? 0 : 1, .l3 = std::max(0, i - 1), .cpus = {i}});
  EXPECT_EQ(cpus_of(plan(topology, 2)), (std::vector<Cpus>{{0, 1}, {2, 3, 4}}));
  for (Core& core : topology.cores) core.node = 0;
  EXPECT_EQ(cpus_of(plan(topology, 2)), (std::vector<Cpus>{{0, 1, 2}, {3, 4}}));
}

TEST(Binding, AMaskWithHolesIsDividedByWhatItHas) {
  const Topology topology = synthetic_topology("numa:2 core:4 pu:2", {0, 1, 3, 6, 8, 9, 15});
  // Cores {0,1} {3} {6} of node 0, {8,9} {15} of node 1.
  EXPECT_EQ(cpus_of(plan(topology, 2)), (std::vector<Cpus>{{0, 1, 3, 6}, {8, 9, 15}}));
  EXPECT_EQ(cpus_of(plan(topology, 5)), (std::vector<Cpus>{{0, 1}, {3}, {6}, {8, 9}, {15}}));
  EXPECT_EQ(threads_of(plan(topology, 2)), (std::vector<int>{3, 2}));
}

TEST(Binding, BothHyperthreadsOfACoreBelongToOneRankAndCountOnce) {
  const BindingPlan bound = plan(machine("core:4 pu:2", 8), 3);
  EXPECT_EQ(cpus_of(bound), (std::vector<Cpus>{{0, 1, 2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(threads_of(bound), (std::vector<int>{2, 1, 1}));
}

TEST(Binding, NobodyIsBoundWhenThereAreMoreRanksThanCores) {
  const Topology topology = machine("core:2 pu:2", 4);
  const BindingPlan free = plan(topology, 3, Binding::automatic);
  EXPECT_EQ(cpus_of(free), (std::vector<Cpus>{{}, {}, {}}));
  EXPECT_EQ(threads_of(free), (std::vector<int>{1, 1, 1}));
  EXPECT_NE(free.picture.find("no rank is bound: more ranks than cores\n"), std::string::npos);
  EXPECT_THROW(plan(topology, 3, Binding::core), Error);
  EXPECT_THROW(plan(topology, 3, Binding::cache), Error);
}

TEST(Binding, CoresAreNotDividedAmongNobody) {
  EXPECT_THROW(plan(machine("core:2 pu:1", 2), 0), Error);
}

TEST(Binding, AskedForNoneNobodyIsBoundAndCoresAreStillShared) {
  const BindingPlan free = plan(machine("numa:2 core:4 pu:1", 8), 3, Binding::none);
  EXPECT_EQ(cpus_of(free), (std::vector<Cpus>{{}, {}, {}}));
  EXPECT_EQ(threads_of(free), (std::vector<int>{2, 2, 2}));
  EXPECT_TRUE(free.ranks[0].memory_nodes.empty());
}

TEST(Binding, UnderAQuotaBelowTheCoresNobodyIsBoundUnlessAskedFor) {
  const Topology topology = machine("core:8 pu:2", 16);
  const BindingPlan free = plan(topology, 2, Binding::automatic, 5.5);
  EXPECT_EQ(cpus_of(free), (std::vector<Cpus>{{}, {}}));
  EXPECT_EQ(threads_of(free), (std::vector<int>{2, 2}));
  EXPECT_NE(free.picture.find("no rank is bound: a CPU quota of 5.5"), std::string::npos);
  EXPECT_EQ(threads_of(plan(topology, 4, Binding::automatic, 0.5)), (std::vector<int>{1, 1, 1, 1}));

  const BindingPlan bound = plan(topology, 2, Binding::core, 5.5);
  EXPECT_EQ(cpus_of(bound), cpus_of(plan(topology, 2)));
  EXPECT_EQ(threads_of(bound), (std::vector<int>{2, 2}));
  EXPECT_EQ(threads_of(plan(topology, 2, Binding::numa, 5.5)), (std::vector<int>{2, 2}));
}

TEST(Binding, AQuotaOfAllCoresIsNone) {
  const Topology topology = machine("core:8 pu:2", 16);
  EXPECT_EQ(cpus_of(plan(topology, 2, Binding::automatic, 8)),
            cpus_of(plan(topology, 2, Binding::automatic)));
}

TEST(Binding, MemoryIsOfTheNodeThatARankIsIn) {
  const Topology topology = machine("pack:2 numa:2 core:4 pu:1", 16);
  for (const int ranks : {4, 8}) {
    const BindingPlan bound = plan(topology, ranks);
    for (int i = 0; i < ranks; ++i)
      EXPECT_EQ(bound.ranks[static_cast<std::size_t>(i)].memory_nodes, Cpus{i * 4 / ranks});
  }
  for (const RankBinding& rank : plan(topology, 2).ranks)
    EXPECT_TRUE(rank.memory_nodes.empty()) << "its cores are of two nodes";
  EXPECT_TRUE(plan(machine("core:4 pu:1", 4), 2).ranks[0].memory_nodes.empty())
      << "there is no other node";
}

TEST(Binding, ByDefaultRanksOfOneCacheShareItsCoresAndEachHasItsShareOfThreads) {
  const Topology topology = machine("pack:2 numa:1 l3:2 core:2 pu:1", 8);
  const Cpus first{0, 1}, second{2, 3}, third{4, 5}, fourth{6, 7};
  const BindingPlan eight = plan(topology, 8, Binding::automatic);
  EXPECT_EQ(cpus_of(eight),
            (std::vector<Cpus>{first, first, second, second, third, third, fourth, fourth}));
  EXPECT_EQ(threads_of(eight), std::vector<int>(8, 1));
  EXPECT_EQ(eight.ranks[7].memory_nodes, Cpus{1});
  EXPECT_EQ(cpus_of(plan(topology, 4, Binding::automatic)), cpus_of(plan(topology, 4)))
      << "a cache each";
}

TEST(Binding, ARankWithCoresOfTwoCachesMayUseAllOfBoth) {
  const BindingPlan bound = plan(machine("numa:1 l3:3 core:2 pu:1", 6), 2, Binding::cache);
  EXPECT_EQ(cpus_of(bound), (std::vector<Cpus>{{0, 1, 2, 3}, {2, 3, 4, 5}}));
  EXPECT_EQ(threads_of(bound), (std::vector<int>{3, 3}));
}

TEST(Binding, WithoutL3RanksOfANodeShareItsCores) {
  const BindingPlan bound = plan(machine("numa:2 core:2 pu:1", 4), 4, Binding::cache);
  EXPECT_EQ(cpus_of(bound), (std::vector<Cpus>{{0, 1}, {0, 1}, {2, 3}, {2, 3}}));
}

TEST(Binding, ToNodesEachRankHasAllOfOne) {
  const Topology topology = machine("numa:4 core:2 pu:2", 16);
  const BindingPlan bound = plan(topology, 4, Binding::numa);
  EXPECT_EQ(cpus_of(bound),
            (std::vector<Cpus>{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}}));
  EXPECT_EQ(threads_of(bound), (std::vector<int>{2, 2, 2, 2}));
  EXPECT_EQ(bound.ranks[3].memory_nodes, Cpus{3});
}

TEST(Binding, WithFewerRanksThanNodesTheyAreFarApart) {
  const BindingPlan bound = plan(machine("numa:4 core:1 pu:1", 4), 2, Binding::numa);
  EXPECT_EQ(cpus_of(bound), (std::vector<Cpus>{{0}, {2}}));
}

TEST(Binding, WithFewerNodesThanRanksNodesAreShared) {
  const BindingPlan bound = plan(machine("numa:2 core:4 pu:1", 8), 5, Binding::numa);
  const Cpus left{0, 1, 2, 3}, right{4, 5, 6, 7};
  EXPECT_EQ(cpus_of(bound), (std::vector<Cpus>{left, left, left, right, right}));
  EXPECT_EQ(threads_of(bound), (std::vector<int>{1, 1, 1, 2, 2}));
  const BindingPlan crowd = plan(machine("numa:2 core:4 pu:1", 8), 64, Binding::numa);
  EXPECT_EQ(crowd.ranks[31].cpus, left);
  EXPECT_EQ(crowd.ranks[32].cpus, right);
  EXPECT_EQ(crowd.ranks[63].threads, 1);
}

TEST(Binding, ThePictureShowsEachCacheWithItsRanks) {
  EXPECT_EQ(plan(machine("pack:2 numa:1 l3:2(size=33554432) core:4 pu:1", 16), 4).picture,
            "package 0  numa 0  L3 32 MiB  4 cores: 0-3    rank 0: 0-3\n"
            "package 0  numa 0  L3 32 MiB  4 cores: 4-7    rank 1: 4-7\n"
            "package 1  numa 1  L3 32 MiB  4 cores: 8-11   rank 2: 8-11\n"
            "package 1  numa 1  L3 32 MiB  4 cores: 12-15  rank 3: 12-15\n");
  EXPECT_EQ(plan(machine("numa:1 core:4 pu:2", 8), 2).picture,
            "package 0  numa 0  no L3  4 cores: 0-7  rank 0: 0-3  rank 1: 4-7\n");
  EXPECT_EQ(plan(machine("numa:1 core:4 pu:1", 4), 3, Binding::numa).picture,
            "package 0  numa 0  no L3  4 cores: 0-3  ranks 0-2: 0-3\n");
}

TEST(Binding, OnThisHostThereIsACoreForEachUsableOne) {
  const int cores = usable_cores();
  EXPECT_GE(cores, 1);
  EXPECT_LE(cores, static_cast<int>(affinity_mask().size()));
  const BindingPlan bound = plan_binding(cores, Binding::automatic);
  ASSERT_EQ(static_cast<int>(bound.ranks.size()), cores);
  for (const RankBinding& rank : bound.ranks) EXPECT_EQ(rank.threads, 1);
}

}  // namespace
}  // namespace lockstep::launch::binding_test
