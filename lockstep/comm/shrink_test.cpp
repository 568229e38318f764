// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/device_mesh.h"
#include "lockstep/comm/elastic_group.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/values.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/across_hosts.h"
#include "tests/rigs/elastic_options.h"
#include "tests/soon.h"

namespace lockstep::comm::shrink_test {
namespace {

using test::await_file;
using test::elastic_options;
using test::fault_of;
using test::HostLayout;
using test::Rank;
using test::Ranks;

// Processes are named by their ranks at the start.
class Member {
 public:
  explicit Member(const Rank& rank, int incarnation = 0)
      : number_(rank.rank), elastic_(options_of(rank, incarnation)) {
    elastic_.agree({});
    elastic_.form();
  }

  ProcessGroup& world() { return elastic_.group(); }
  ElasticGroup& elastic() { return elastic_; }

  // Collective. The processes `lost` die; the others make the next world.
  void lose(const std::set<int>& lost) {
    meet_and_lose(lost);
    await_loss();
    continue_without();
  }

  // Collective. The processes `lost` die when all have entered.
  void meet_and_lose(const std::set<int>& lost) {
    try {
      world().barrier();
    } catch (const Error& error) {  // One has died already.
      EXPECT_EQ(error.fault(), Fault::peer_lost) << error.what();
    }
    if (lost.contains(number_)) ::raise(SIGKILL);
  }

  void await_loss() {
    EXPECT_EQ(fault_of([&] {
                while (true) world().barrier();
              }),
              Fault::peer_lost);
  }

  // A process may be lost meanwhile.
  void continue_without() {
    while (true) {
      elastic_.agree({});
      try {
        return elastic_.form();
      } catch (const Error& error) {
        if (!can_continue_after(error)) throw;
      }
    }
  }

  // Collective over `group`, which must consist of `processes`.
  void expect_works(const ProcessGroup& group, const std::vector<int>& processes) const {
    EXPECT_EQ(all_gather_value(number_, group), processes) << group.name();
    std::vector<float> small(3, static_cast<float>(number_ + 1));
    std::vector<float> large(100'000, static_cast<float>(number_ + 1));
    group.all_reduce(buffer_of(small));
    group.all_reduce(buffer_of(large));
    const int sum = std::accumulate(processes.begin(), processes.end(), 0);
    const auto expected = static_cast<float>(sum + static_cast<int>(processes.size()));
    EXPECT_EQ(small, std::vector<float>(3, expected)) << group.name();
    EXPECT_EQ(large, std::vector<float>(100'000, expected)) << group.name();
  }

 private:
  static ElasticOptions options_of(const Rank& rank, int incarnation) {
    ElasticOptions options = elastic_options(rank, incarnation);
    if (std::getenv("LOCKSTEP_TEST_HOSTS") != nullptr) {
      ::setenv("LOCKSTEP_HOST_ID", test::host_of_rank(rank.rank).c_str(), 1);
      options.init.interface = "lo";  // Other networks need a token.
    }
    return options;
  }

  const int number_;
  ElasticGroup elastic_;
};

void expect_success_but_of(const std::set<int>& killed, const std::vector<test::Exit>& exits) {
  for (const test::Exit& exit : exits) {
    EXPECT_EQ(exit.signal, killed.contains(exit.rank) ? SIGKILL : 0) << exit.output;
    if (killed.contains(exit.rank)) continue;
    EXPECT_EQ(exit.code, 0) << exit.output;
  }
}

// --- Subgroups -----------------------------------------------------------------------------------

const Ranks one_dies("one of five dies", [](const Rank& rank) {
  Member me(rank);
  const ProcessGroup before = me.world();
  const std::optional<ProcessGroup> three = before.new_group({3, 1, 4});
  const ProcessGroup reverse = before.split(0, -rank.rank);
  const RegisteredMemory memory = before.allocate(1 << 16);
  if (three) me.expect_works(*three, {3, 1, 4});
  me.lose({1});
  EXPECT_EQ(former_ranks(before, me.world()), (std::vector{0, 2, 3, 4}));
  EXPECT_EQ(former_ranks(me.world(), before), (std::vector{0, -1, 1, 2, 3}));
  if (three) {
    const ProcessGroup two = shrink(*three, me.world());
    EXPECT_EQ(two.name(), me.world().name() + "." + three->name());
    EXPECT_EQ(former_ranks(*three, two), (std::vector{0, 2}));
    EXPECT_EQ(former_ranks(two, *three), (std::vector{0, -1, 1}));
    EXPECT_EQ(two.rank(), rank.rank - 3);
    me.expect_works(two, {3, 4});
  }
  const ProcessGroup rest = shrink(reverse, me.world());
  me.expect_works(rest, {4, 3, 2, 0});
  me.expect_works(rest.split(rank.rank % 2),
                  rank.rank == 3 ? std::vector{3} : std::vector{4, 2, 0});
  const Buffer registered{.data = memory.data(), .count = 1 << 14};
  auto* const floats = static_cast<float*>(registered.data);
  std::fill_n(floats, registered.count, 1.F);
  rest.all_reduce(registered);
  EXPECT_EQ(std::count(floats, floats + registered.count, 4.F), 1 << 14);
  EXPECT_EQ(rest.allocate(4096).bytes(), 4096U);
  if (three) {
    EXPECT_EQ(fault_of([&] { three->barrier(); }), Fault::misuse);
  }
  EXPECT_EQ(fault_of([&] { reverse.barrier(); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { before.barrier(); }), Fault::misuse);
  me.world().barrier();
});

TEST(Shrink, SubgroupsContinueWithoutALostRank) { expect_success_but_of({1}, one_dies.run(5)); }

const Ranks several_die("a whole subgroup dies", [](const Rank& rank) {
  Member me(rank);
  ProcessGroup group = me.world().split(rank.rank % 2);
  const std::string name = group.name();
  const ProcessGroup first = group;
  me.expect_works(group, rank.rank % 2 == 0 ? std::vector{0, 2, 4} : std::vector{1, 3, 5});
  me.lose({1, 3, 5});
  group = shrink(group, me.world());
  me.expect_works(group, {0, 2, 4});
  me.lose({2});
  group = shrink(group, me.world());
  EXPECT_EQ(group.name(), me.world().name() + "." + name);
  EXPECT_EQ(former_ranks(first, group), (std::vector{0, 2}));
  me.expect_works(group, {0, 4});
  me.lose({4});
  me.expect_works(shrink(group, me.world()), {0});
});

TEST(Shrink, SubgroupsLoseRanksRepeatedlyAndMayDisappear) {
  expect_success_but_of({1, 2, 3, 4, 5}, several_die.run(6));
}

const Ranks die_in_shrink("a member dies while its group shrinks", [](const Rank& rank) {
  Member me(rank);
  const ProcessGroup all = me.world().split(0);
  me.lose({5});
  me.meet_and_lose({1});
  EXPECT_EQ(fault_of([&] { shrink(all, me.world()); }), Fault::peer_lost);
  me.continue_without();
  me.meet_and_lose({0});
  EXPECT_EQ(fault_of([&] { shrink(all, me.world()); }), Fault::peer_lost);
  me.continue_without();
  me.expect_works(shrink(all, me.world()), {2, 3, 4});
});

TEST(Shrink, SurvivesDeathsOfMembersDuringTheShrink) {
  expect_success_but_of({0, 1, 5}, die_in_shrink.run(6));
}

// Process 0 waits for process 1 in calls of both. Process 1 waits for the end of another process.
const Ranks other_dies("a rank that is no member dies", [](const Rank& rank) {
  Member me(rank);
  const std::optional<ProcessGroup> pair = me.world().new_group({0, 1});
  me.meet_and_lose({2});
  if (rank.rank == 0) {
    EXPECT_EQ(fault_of([&] { pair->barrier(); }), Fault::peer_lost);
  } else {
    me.await_loss();
  }
  me.continue_without();
  me.meet_and_lose({3});
  if (rank.rank == 0) {
    EXPECT_EQ(fault_of([&] { shrink(*pair, me.world()); }), Fault::peer_lost);
  } else {
    me.await_loss();
  }
  me.continue_without();
  me.expect_works(shrink(*pair, me.world()), {0, 1});
});

TEST(Shrink, EndsWhenARankThatIsNoMemberDies) { expect_success_but_of({2, 3}, other_dies.run(4)); }

// Process 0 has made the group of each generation; the others only the first and the last.
const Ranks behind("members pass groups of different generations", [](const Rank& rank) {
  Member me(rank);
  const ProcessGroup first = me.world().new_group({2, 1, 0, 3}).value();
  me.lose({3});
  const ProcessGroup second = shrink(first, me.world());
  me.lose({2});
  const ProcessGroup third = shrink(rank.rank == 0 ? second : first, me.world());
  EXPECT_EQ(third.name(), me.world().name() + "." + first.name());
  me.expect_works(third, {1, 0});
});

TEST(Shrink, MembersMayPassGroupsOfDifferentGenerations) {
  expect_success_but_of({2, 3}, behind.run(4));
}

// Process 2 is the second one in place of rank 1.
const Ranks joins("a process joins a world whose groups shrink", [](const Rank& process) {
  const bool is_new = process.rank == 2;
  Rank rank = process;
  rank.world_size = 2;
  if (is_new) {
    rank.rank = 1;
    await_file(process.scratch / "started");
  }
  Member me(rank, is_new ? 1 : 0);
  const ProcessGroup before = me.world();
  if (is_new) {
    EXPECT_EQ(former_ranks(before, before), (std::vector{0, 1}));
    me.world().barrier();
    return;
  }
  me.lose({1});
  std::ofstream(process.scratch / "started");
  while (me.world().size() == 1) {
    while (!me.elastic().has_arrivals()) me.world().barrier();
    me.continue_without();
  }
  EXPECT_EQ(former_ranks(before, me.world()), (std::vector{0, -1}));
  me.expect_works(shrink(before, me.world()), {0});
  me.world().barrier();
});

TEST(Shrink, ProcessesThatJoinAreInNoEarlierGroup) { expect_success_but_of({1}, joins.run(3)); }

TEST(Shrink, IsForGroupsOfAnElasticGroup) {
  run_in_process(2, [](const ProcessGroup& world) {
    std::string text;
    EXPECT_EQ(fault_of([&] { shrink(world, world); }, &text), Fault::misuse);
    EXPECT_NE(text.find("group world is not of an ElasticGroup"), text.npos) << text;
    EXPECT_EQ(fault_of([&] { former_ranks(world, world); }), Fault::misuse);
    EXPECT_EQ(fault_of([&] { DeviceMesh(world, {{"dp", 2}}).shrink(world, "dp"); }), Fault::misuse);
  });
}

// --- Meshes --------------------------------------------------------------------------------------

const Ranks lose_replicas("replicas lose ranks", [](const Rank& rank) {
  Member me(rank);
  const DeviceMesh first(me.world(), {{"replicas", 3}, {"shard", 2}});
  const DeviceMesh columns(me.world(), {{"shard", 2}, {"replicas", -1}});
  const DeviceMesh line(me.world(), {{"dp", -1}});
  me.lose({3});

  EXPECT_EQ(fault_of([&] { first.shrink(me.world(), "none"); }), Fault::misuse);
  std::optional<DeviceMesh> mesh = first.shrink(me.world(), "replicas");
  EXPECT_EQ(mesh.has_value(), rank.rank != 2);
  if (mesh) {
    EXPECT_EQ(mesh->size("replicas"), 2);
    EXPECT_EQ(mesh->size("shard"), 2);
    EXPECT_EQ(former_ranks(first.group(), mesh->group()), (std::vector{0, 1, 4, 5}));
    const int shard = rank.rank % 2, start = rank.rank / 4 * 4;
    me.expect_works((*mesh)["replicas"], {shard, 4 + shard});
    me.expect_works((*mesh)["shard"], {start, start + 1});
    me.expect_works((*mesh)[{"replicas", "shard"}], {0, 1, 4, 5});
  }
  const auto other = columns.shrink(me.world(), "replicas");
  EXPECT_EQ(other.has_value(), rank.rank != 0);
  if (other) me.expect_works((*other)["shard"], {rank.rank % 3, rank.rank % 3 + 3});
  me.expect_works((*line.shrink(me.world(), "dp"))["dp"], {0, 1, 2, 4, 5});

  // Spare ranks stay spare.
  me.lose({0});
  const auto second = (mesh ? *mesh : first).shrink(me.world(), "replicas");
  EXPECT_EQ(second.has_value(), rank.rank >= 4);
  if (second) me.expect_works((*second)["shard"], {4, 5});
  if (second) me.expect_works((*second)["replicas"], {rank.rank});
  me.lose({4});
  std::string text;
  EXPECT_EQ(fault_of([&] { first.shrink(me.world(), "replicas"); }, &text), Fault::unsupported);
  EXPECT_NE(text.find("axis 'replicas'"), text.npos) << text;
  me.expect_works(me.world(), {1, 2, 5});
});

TEST(Shrink, AMeshContinuesWithItsCompleteReplicas) {
  expect_success_but_of({0, 3, 4}, lose_replicas.run(6));
}

// Process 5 dies instead of calling shrink(). Process 0 had made the mesh of the first generation.
const Ranks mesh_meanwhile("a rank dies while a mesh shrinks", [](const Rank& rank) {
  Member me(rank);
  const DeviceMesh first(me.world(), {{"replicas", 3}, {"shard", 2}});
  me.lose({2});
  const auto second = first.shrink(me.world(), "replicas");
  EXPECT_EQ(second.has_value(), rank.rank != 3);
  me.meet_and_lose({5});
  const DeviceMesh& latest = rank.rank == 0 ? *second : first;
  if (rank.rank == 3) {
    me.await_loss();
  } else {
    EXPECT_EQ(fault_of([&] { latest.shrink(me.world(), "replicas"); }), Fault::peer_lost);
  }
  me.continue_without();
  const auto third = latest.shrink(me.world(), "replicas");
  EXPECT_EQ(third.has_value(), rank.rank < 2);
  if (third) {
    me.expect_works((*third)["shard"], {0, 1});
    EXPECT_EQ(third->size("replicas"), 1);
  }
  me.world().barrier();
});

TEST(Shrink, AMeshSurvivesDeathsDuringTheShrink) {
  expect_success_but_of({2, 5}, mesh_meanwhile.run(6));
}

// --- Across hosts --------------------------------------------------------------------------------

TEST(Shrink, WorksAcrossHosts) {
  LOCKSTEP_NEEDS_ENGINE("gloo");
  const struct {
    const Ranks& body;
    std::set<int> killed;
    std::string hosts;
  } all[] = {
      {one_dies, {1}, "aabab"},
      {several_die, {1, 2, 3, 4, 5}, "aaabbb"},
      {die_in_shrink, {0, 1, 5}, "ababab"},
      {other_dies, {2, 3}, "aabb"},
      {behind, {2, 3}, "abab"},
      {lose_replicas, {0, 3, 4}, "aabbab"},
      {mesh_meanwhile, {2, 5}, "aabbab"},
  };
  for (const auto& [body, killed, hosts] : all) {
    SCOPED_TRACE(hosts);
    const HostLayout layout{.hosts = hosts, .backend = "gloo"};
    layout.set();
    expect_success_but_of(killed, body.run(layout.ranks()));
    HostLayout::unset();
  }
}

}  // namespace
}  // namespace lockstep::comm::shrink_test
