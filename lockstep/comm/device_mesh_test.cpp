// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/device_mesh.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/comm/values.h"
#include "tests/fault_of.h"

namespace lockstep::comm::device_mesh_test {
namespace {

using test::fault_of;

std::vector<int> members(const ProcessGroup& group, const ProcessGroup& world) {
  return all_gather_value(world.rank(), group);
}

TEST(DeviceMesh, TheLastAxisVariesFastestAndMinusOneIsInferred) {
  run_in_process(12, [](ProcessGroup& world) {
    const DeviceMesh mesh(world, {{"pp", 2}, {"dp", -1}, {"tp", 2}});
    EXPECT_EQ(mesh.names(), (std::vector<std::string>{"pp", "dp", "tp"}));
    EXPECT_EQ(mesh.size("pp"), 2);
    EXPECT_EQ(mesh.size("dp"), 3);
    EXPECT_EQ(mesh.size("tp"), 2);
    const int pp = world.rank() / 6, dp = world.rank() / 2 % 3, tp = world.rank() % 2;
    EXPECT_EQ(mesh.rank("pp"), pp);
    EXPECT_EQ(mesh.rank("dp"), dp);
    EXPECT_EQ(mesh.rank("tp"), tp);
    const auto rank_of = [](int p, int d, int t) { return p * 6 + d * 2 + t; };
    EXPECT_EQ(members(mesh["pp"], world),
              (std::vector<int>{rank_of(0, dp, tp), rank_of(1, dp, tp)}));
    EXPECT_EQ(members(mesh["dp"], world),
              (std::vector<int>{rank_of(pp, 0, tp), rank_of(pp, 1, tp), rank_of(pp, 2, tp)}));
    EXPECT_EQ(members(mesh["tp"], world),
              (std::vector<int>{rank_of(pp, dp, 0), rank_of(pp, dp, 1)}));
    for (const char* name : {"pp", "dp", "tp"}) {
      EXPECT_EQ(mesh[name].rank(), mesh.rank(name));
      EXPECT_EQ(mesh[name].size(), mesh.size(name));
    }
  });
}

TEST(DeviceMesh, SeveralAxesFlattenInTheMeshesOrderAndAreMadeOnce) {
  run_in_process(8, [](ProcessGroup& world) {
    const DeviceMesh mesh(world, {{"dp", 2}, {"cp", 2}, {"tp", 2}});
    const int r = world.rank();
    const ProcessGroup outer = mesh[{"tp", "dp"}];  // Not adjacent, and not in the mesh's order.
    const int cp = r / 2 % 2 * 2;
    EXPECT_EQ(members(outer, world), (std::vector<int>{cp, cp + 1, cp + 4, cp + 5}));
    EXPECT_EQ(outer.rank(), mesh.rank("dp") * 2 + mesh.rank("tp"));
    const DeviceMesh copy = mesh;
    EXPECT_EQ((copy[{"dp", "tp"}].name()), outer.name());
    EXPECT_EQ((copy[std::vector<std::string>{"tp", "dp"}].name()), outer.name());
    EXPECT_EQ((mesh[{"cp"}].name()), mesh["cp"].name());
    const ProcessGroup all = mesh[{"dp", "cp", "tp"}];
    EXPECT_EQ(all.size(), 8);
    EXPECT_EQ(all.rank(), r);
    EXPECT_EQ(mesh.group().name(), world.name());
  });
}

TEST(DeviceMesh, GroupsAreNamedAfterTheirAxis) {
  run_in_process(4, [](ProcessGroup& world) {
    const DeviceMesh mesh(world, {{"dp", 2}, {"tp", 2}});
    EXPECT_EQ(mesh["dp"].name(), world.name() + ".1.dp:" + std::to_string(world.rank() % 2));
    EXPECT_EQ(mesh["tp"].name(), world.name() + ".2.tp:" + std::to_string(world.rank() / 2));
    EXPECT_EQ((mesh[{"dp", "tp"}].name()), world.name() + ".3.dp_tp:0");
  });
}

TEST(DeviceMesh, AMeshOfAMeshsGroupAndOfOneRank) {
  run_in_process(4, [](ProcessGroup& world) {
    const DeviceMesh outer(world, {{"pp", 2}, {"rest", -1}});
    const DeviceMesh inner(outer["rest"], {{"dp", 1}, {"tp", 2}});
    EXPECT_EQ(inner["dp"].size(), 1);
    EXPECT_EQ(members(inner["tp"], world), members(outer["rest"], world));
  });
  run_in_process(1, [](ProcessGroup& world) {
    const DeviceMesh mesh(world, {{"dp", -1}, {"tp", 1}});
    EXPECT_EQ(mesh.size("dp"), 1);
    EXPECT_EQ((mesh[{"dp", "tp"}].size()), 1);
  });
}

struct Refused {
  std::vector<MeshAxis> axes;
  std::string text;
};

TEST(DeviceMesh, ImpossibleAxesAreRefusedOnAllRanksWithTheirNumbersAndNothingIsMade) {
  const Refused all[] = {
      {{{"dp", 2}, {"tp", 4}}, "dp=2 x tp=4 of group"},
      {{{"dp", 2}, {"tp", 4}}, "the sizes make 8 ranks, the group has 6"},
      {{{"dp", -1}, {"tp", 4}}, "the group's size 6 is not a multiple of 4"},
      {{{"dp", -1}, {"tp", -1}}, "dp=-1 and tp=-1: one size at most"},
      {{{"dp", 3}, {"dp", 2}}, "the name 'dp' is repeated"},
      {{{"dp", 3}, {"", 2}}, "axis 1 of 2, of size 2, has no name"},
      {{{"dp", 6}, {"tp", 0}}, "tp=0 is no size"},
      {{{"dp", -3}, {"tp", -2}}, "dp=-3 is no size"},
      {{{"a", 1 << 30}, {"b", 1 << 30}, {"c", 1 << 30}}, "the group has 6"},
      {{}, "no axes"},
  };
  run_in_process(6, [&](ProcessGroup& world) {
    for (const auto& [axes, expected] : all) {
      std::string text;
      EXPECT_EQ(fault_of([&] { DeviceMesh(world, axes); }, &text), Fault::misuse);
      EXPECT_NE(text.find(expected), std::string::npos) << text;
    }
    EXPECT_EQ(world.split(0).name(), world.name() + ".1:0");  // The first split of this group.
  });
}

TEST(DeviceMesh, UnknownAxesAreRefusedWithTheNamesThereAre) {
  run_in_process(4, [](ProcessGroup& world) {
    const DeviceMesh mesh(world, {{"dp", 2}, {"tp", 2}});
    std::string text;
    EXPECT_EQ(fault_of([&] { mesh["pp"]; }, &text), Fault::misuse);
    EXPECT_NE(text.find("there is no axis 'pp'; there are dp, tp"), std::string::npos) << text;
    EXPECT_EQ(fault_of([&] { mesh[{"dp", "cp"}]; }, &text), Fault::misuse);
    EXPECT_NE(text.find("no axis 'cp'"), std::string::npos) << text;
    EXPECT_EQ(fault_of([&] { mesh[{"dp", "dp"}]; }, &text), Fault::misuse);
    EXPECT_NE(text.find("axis 'dp' is named twice"), std::string::npos) << text;
    EXPECT_EQ(fault_of([&] { mesh[std::vector<std::string>{}]; }), Fault::misuse);
    EXPECT_EQ(fault_of([&] { mesh.size(""); }), Fault::misuse);
    EXPECT_EQ(fault_of([&] { mesh.rank("x"); }), Fault::misuse);
  });
}

TEST(DeviceMesh, AxesThatDifferBetweenRanksAreAMismatchThatNamesBoth) {
  run_in_process(4, [](ProcessGroup& world) {
    const int tp = world.rank() == 2 ? 4 : 2;
    std::optional<Error> error;
    try {
      DeviceMesh(world, {{"dp", -1}, {"tp", tp}});
    } catch (const Error& thrown) {
      error = thrown;
    }
    ASSERT_TRUE(error);
    EXPECT_EQ(error->fault(), Fault::mismatch);
    EXPECT_EQ(error->ranks(), std::vector<int>{2});
    const std::string text = error->what();
    EXPECT_NE(text.find("rank 0 asks for dp=-1 x tp=2, rank 2 for dp=-1 x tp=4"), text.npos)
        << text;
    world.barrier();
  });
}

TEST(DeviceMesh, RanksThatFlattenDifferentAxesGetAMismatchWithTheirNames) {
  const auto body = [](ProcessGroup& world) {
    const DeviceMesh mesh(world, {{"dp", 2}, {"cp", 1}, {"tp", 2}});
    mesh[{"dp", world.rank() == 0 ? "cp" : "tp"}];
  };
  std::string text;
  EXPECT_EQ(fault_of([&] { run_in_process(4, body); }, &text), Fault::mismatch);
  EXPECT_NE(text.find("dp_cp"), std::string::npos) << text;
  EXPECT_NE(text.find("dp_tp"), std::string::npos) << text;
}

}  // namespace
}  // namespace lockstep::comm::device_mesh_test
