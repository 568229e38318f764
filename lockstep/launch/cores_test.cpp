// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include "lockstep/comm/error.h"

namespace lockstep {
namespace {

using Blocks = std::vector<std::vector<int>>;

TEST(Cores, AreDividedIntoBlocksOfNeighbours) {
  EXPECT_EQ(divide_cpus({0, 1, 2, 3}, 2), (Blocks{{0, 1}, {2, 3}}));
  EXPECT_EQ(divide_cpus({1, 3, 5, 8, 9}, 2), (Blocks{{1, 3}, {5, 8, 9}}));
  EXPECT_EQ(divide_cpus({4, 6}, 2), (Blocks{{4}, {6}}));
}

TEST(Cores, EveryCpuIsGivenOnceAndBlocksDifferByOneAtMost) {
  for (int count = 1; count <= 40; ++count) {
    std::vector<int> cpus;
    for (int i = 0; i < count; ++i) cpus.push_back(3 * i);
    for (int ranks = 1; ranks <= count; ++ranks) {
      std::vector<int> given;
      for (const auto& block : divide_cpus(cpus, ranks)) {
        EXPECT_GE(static_cast<int>(block.size()), count / ranks);
        EXPECT_LE(static_cast<int>(block.size()), count / ranks + 1);
        given.insert(given.end(), block.begin(), block.end());
      }
      EXPECT_EQ(given, cpus) << ranks << " ranks";
    }
  }
}

TEST(Cores, NobodyIsBoundWhenThereAreMoreRanksThanCpus) {
  EXPECT_EQ(divide_cpus({0, 1}, 3), (Blocks{{}, {}, {}}));
}

TEST(Cores, AreNotDividedAmongNobody) { EXPECT_THROW(divide_cpus({0}, 0), Error); }

TEST(Cores, TheUsableOnesAreThoseOfTheAffinityMask) {
  cpu_set_t mask;
  ASSERT_EQ(::sched_getaffinity(0, sizeof mask, &mask), 0);
  const auto cpus = usable_cpus();
  EXPECT_EQ(static_cast<int>(cpus.size()), CPU_COUNT(&mask));
  for (const int cpu : cpus) EXPECT_TRUE(CPU_ISSET(cpu, &mask));
}

TEST(Cores, AreWrittenAsRanges) {
  EXPECT_EQ(as_ranges({}), "");
  EXPECT_EQ(as_ranges({5}), "5");
  EXPECT_EQ(as_ranges({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
}

}  // namespace
}  // namespace lockstep
