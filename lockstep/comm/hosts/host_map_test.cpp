// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/host_map.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "lockstep/comm/hosts/engine_communicator.h"
#include "lockstep/comm/reduce/reduce.h"

namespace lockstep::comm::host_map_test {
namespace {

TEST(HostMap, CountsHostsInTheOrderOfTheirFirstRank) {
  const HostMap map({7, 3, 7, 3, 7}, 4);
  EXPECT_EQ(map.hosts(), 2);
  EXPECT_EQ(map.ranks(0), (std::vector<int>{0, 2, 4}));
  EXPECT_EQ(map.ranks(1), (std::vector<int>{1, 3}));
  EXPECT_EQ(map.host(), 0);
  EXPECT_EQ(map.local_rank(), 2);
  EXPECT_EQ(map.local_size(), 3);
  EXPECT_EQ(map.host_of(3), 1);
  EXPECT_EQ(map.local_rank_of(3), 1);
}

TEST(HostMap, HasAsManySlicesAsTheSmallestHostHasRanks) {
  const HostMap surplus({0, 0, 0, 1, 1}, 2);
  EXPECT_EQ(surplus.slices(), 2);
  EXPECT_FALSE(surplus.owns_slice());
  EXPECT_EQ(surplus.slice_ranks(0), (std::vector<int>{0, 3}));
  EXPECT_EQ(surplus.slice_ranks(1), (std::vector<int>{1, 4}));
  EXPECT_TRUE(HostMap({0, 0, 1, 1}, 3).owns_slice());
}

TEST(Slices, CutWholeCacheLinesAndNothingTwice) {
  for (const std::size_t count : {0, 1, 15, 16, 17, 1000, 4096})
    for (const int slices : {1, 2, 3, 8}) {
      const Counts counts = cut(count, 4, slices, slices + 2);
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::size_t{0}), count);
      EXPECT_EQ(counts[static_cast<std::size_t>(slices)], 0U);  // Surplus ranks own no slice.
      std::size_t begin = 0;
      for (int s = 0; s < slices; ++s) {
        if (counts[static_cast<std::size_t>(s)] > 0) {
          EXPECT_EQ(begin % 16, 0U);
        }
        begin += counts[static_cast<std::size_t>(s)];
      }
    }
}

// All parts are numbered in one sequence, so that a lost or repeated element is detected.
TEST(Slices, PartsThatAreCutComeTogetherAgain) {
  const std::vector<std::vector<int>> layouts{{0, 0, 1, 1}, {0, 1, 0, 1, 0}, {0, 0, 0, 1}, {0, 1}};
  for (const auto& layout : layouts) {
    Counts counts;
    for (std::size_t r = 0; r < layout.size(); ++r) counts.push_back(r * 37 % 90);
    const HostMap map(layout, 0);
    const HostBlocks blocks(map, counts, sizeof(int));
    std::vector<int> parts(blocks.elements());
    std::iota(parts.begin(), parts.end(), 1);
    std::vector<int> slices(parts.size(), 0);
    std::vector<int> back(parts.size(), 0);
    blocks.slices_from_parts(reinterpret_cast<std::byte*>(slices.data()),
                             reinterpret_cast<const std::byte*>(parts.data()));
    blocks.parts_from_slices(reinterpret_cast<std::byte*>(back.data()),
                             reinterpret_cast<const std::byte*>(slices.data()));
    EXPECT_EQ(back, parts);
    std::size_t all = 0;
    for (int slice = 0; slice < map.slices(); ++slice)
      for (const std::size_t count : blocks.slices_by_host(slice)) all += count;
    EXPECT_EQ(all, blocks.elements());
    EXPECT_EQ(blocks.elements(0) + blocks.elements(1), blocks.elements());
  }
}

TEST(Slices, AreContiguousPerHostInTheOrderOfItsRanks) {
  const HostMap map({0, 1, 0, 1}, 0);
  const HostBlocks blocks(map, {20, 1, 20, 1}, sizeof(int));
  EXPECT_EQ(blocks.parts(0), (Counts{20, 20}));
  EXPECT_EQ(blocks.cut_of(0), (Counts{32, 8}));
  EXPECT_EQ(blocks.slices_by_host(1), (Counts{8, 0}));
  EXPECT_EQ(blocks.elements_by_slice(3), (Counts{34, 8, 0}));
}

TEST(KeptMemory, KnowsWhatItGaveOut) {
  KeptMemory kept;
  const Buffer shape{.count = 100};
  const Buffer scratch = kept.scratch(0, shape);
  EXPECT_NE(kept.owner_of(scratch), nullptr);
  Buffer tail = scratch;
  tail.data = static_cast<float*>(scratch.data) + 60;
  tail.count = 40;
  EXPECT_NE(kept.owner_of(tail), nullptr);
  tail.count = 41;
  EXPECT_EQ(kept.owner_of(tail), nullptr);
  std::vector<float> foreign(4);
  EXPECT_EQ(kept.owner_of(buffer_of(foreign)), nullptr);
}

TEST(KeptMemory, LetsRegisteredMemoryGoWithItsLastHandle) {
  KeptMemory kept;
  auto owner = std::make_shared<std::vector<float>>(16);
  const std::weak_ptr<std::vector<float>> alive = owner;
  float* const data = owner->data();
  RegisteredMemory memory = kept.add({std::move(owner), data, 64});
  auto held = kept.owner_of({.data = data, .count = 16});
  EXPECT_NE(held, nullptr);
  memory = {};
  EXPECT_FALSE(alive.expired());  // A call still uses it.
  held = nullptr;
  EXPECT_TRUE(alive.expired());
  EXPECT_EQ(kept.owner_of({.data = data, .count = 16}), nullptr);
}

TEST(Average, DividesSumsOfFloatsAndIntegers) {
  std::vector<float> floats(5000, 9.0F);
  divide_sums(buffer_of(floats), 3);
  EXPECT_EQ(floats, std::vector<float>(5000, 9.0F * (1.0F / 3)));
  std::vector<double> doubles{6.0};
  divide_sums(buffer_of(doubles), 4);
  EXPECT_EQ(doubles[0], 1.5);
  std::vector<std::uint16_t> brains(5000, 0x4110);  // 9 as bfloat16.
  divide_sums({.data = brains.data(), .count = brains.size(), .dtype = DType::bfloat16}, 3);
  EXPECT_EQ(brains, std::vector<std::uint16_t>(5000, 0x4040));  // 3.
  std::vector<std::int64_t> integers(5000, -8);
  divide_sums({.data = integers.data(), .count = integers.size(), .dtype = DType::int64}, 3);
  EXPECT_EQ(integers, std::vector<std::int64_t>(5000, -2));
}

}  // namespace
}  // namespace lockstep::comm::host_map_test
