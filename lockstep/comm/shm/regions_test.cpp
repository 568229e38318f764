// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/regions.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/shm/shm_backend.h"
#include "lockstep/comm/shm/thread_peers.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::comm::regions_test {
namespace {

using namespace std::chrono_literals;
using test::fault_of;
using test::Rank;
using test::Ranks;

const std::size_t page = page_size();

std::shared_ptr<ThreadTeam> team_of(int ranks) { return std::make_shared<ThreadTeam>(ranks); }

Regions view_of(const std::shared_ptr<Peers>& peers) {
  return {peers, 1min, [](int) {}};
}

Buffer bytes_at(void* data, std::size_t count) {
  return {.data = data, .count = count, .dtype = DType::uint8};
}

std::byte* at(const RegisteredMemory& memory, std::size_t offset) {
  return static_cast<std::byte*>(memory.data()) + offset;
}

// --- Memory outside of registered memory ---------------------------------------------------------

TEST(Regions, MemoryOutsideHasALocationUnlessItsPointerHasATag) {
  constexpr std::uintptr_t highest = (std::uintptr_t{1} << 56) - 1;
  const auto location_of = [](std::uintptr_t address) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    return Regions::outside(bytes_at(reinterpret_cast<void*>(address), 1));
  };
  for (const std::uintptr_t address : {std::uintptr_t{0}, std::uintptr_t{4096}, highest}) {
    EXPECT_TRUE(Regions::is_outside(location_of(address)));
    EXPECT_EQ(Regions::address_outside(location_of(address)), address);
    EXPECT_EQ(Regions::kind_of(location_of(address)), Regions::kind_of(location_of(0)));
  }
  EXPECT_EQ(location_of(highest + 1), 0U);
  EXPECT_EQ(location_of(std::uintptr_t{1} << 63), 0U);

  const auto peers = std::make_shared<ThreadPeers>(team_of(1), 0);
  const RegisteredMemory memory = allocate_own_region(*peers, page);
  const std::uint64_t registered = view_of(peers).locate(bytes_at(at(memory, 0), 1));
  EXPECT_FALSE(Regions::is_outside(registered));
  EXPECT_NE(Regions::kind_of(registered), Regions::kind_of(location_of(0)));
}

// --- Own regions ---------------------------------------------------------------------------------

TEST(Regions, APeerReachesWhatARankHasAllocatedAlone) {
  const auto team = team_of(2);
  const auto first = std::make_shared<ThreadPeers>(team, 0);
  const auto second = std::make_shared<ThreadPeers>(team, 1);
  Regions mine = view_of(first);
  Regions theirs = view_of(second);
  for (const std::size_t bytes : {std::size_t{100}, 3 * page}) {
    const RegisteredMemory memory = allocate_own_region(*first, bytes);
    EXPECT_EQ(memory.bytes(), bytes);
    const std::uint64_t location = mine.locate(bytes_at(at(memory, 64), 10));
    EXPECT_NE(location, 0U);
    EXPECT_EQ(theirs.locate(bytes_at(at(memory, 64), 10)), 0U) << "it is the other rank's";
    EXPECT_EQ(theirs.address(location, 0), at(memory, 64));
    EXPECT_EQ(mine.address(location, 0), at(memory, 64));
  }
}

TEST(Regions, OnlyWhatLiesWithinARegionIsRegistered) {
  const auto peers = std::make_shared<ThreadPeers>(team_of(1), 0);
  Regions regions = view_of(peers);
  std::optional<RegisteredMemory> memory = allocate_own_region(*peers, page);
  std::byte* const begin = at(*memory, 0);
  EXPECT_NE(regions.locate(bytes_at(begin, page)), 0U);
  EXPECT_NE(regions.locate(bytes_at(begin + page - 1, 1)), 0U);
  EXPECT_EQ(regions.locate(bytes_at(begin + 1, page)), 0U);
  EXPECT_EQ(regions.locate(bytes_at(begin + page, 1)), 0U);
  std::vector<std::byte> other(100);
  EXPECT_EQ(regions.locate(bytes_at(other.data(), 100)), 0U);
  memory.reset();
  EXPECT_EQ(regions.locate(bytes_at(begin, page)), 0U) << "its last handle is gone";
}

TEST(Regions, RegionsOfRanksAreOfOneKindAndThoseOfGroupsOfTheirOwn) {
  const auto team = team_of(2);
  const auto peers = std::make_shared<ThreadPeers>(team, 0);
  const auto others = std::make_shared<ThreadPeers>(team, 1);
  Regions regions = view_of(peers);
  Regions theirs = view_of(others);
  const RegisteredMemory own = allocate_own_region(*peers, page);
  const RegisteredMemory more = allocate_own_region(*peers, page);
  const RegisteredMemory another = allocate_own_region(*others, page);
  const auto common = [&] {
    const std::uint64_t number = peers->regions().next_number();
    return regions.add_common(number, peers->offer("common", 2 * page, 2 * page), page);
  };
  const RegisteredMemory first = common();
  const RegisteredMemory second = common();
  const auto kind = [](Regions& view, const RegisteredMemory& memory) {
    return Regions::kind_of(view.locate(bytes_at(at(memory, 8), 8)));
  };
  EXPECT_EQ(kind(regions, own), kind(regions, more));
  EXPECT_EQ(kind(regions, own), kind(theirs, another));
  EXPECT_NE(kind(regions, own), kind(regions, first));
  EXPECT_NE(kind(regions, first), kind(regions, second));
  EXPECT_NE(kind(regions, first), 0U);
  EXPECT_EQ(Regions::kind_of(0), 0U);
}

// --- Groups of one session -----------------------------------------------------------------------

void on_threads(int ranks, const std::function<void(const std::shared_ptr<Peers>&)>& body) {
  const auto team = team_of(ranks);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] { body(std::make_shared<ThreadPeers>(team, rank)); });
}

RegisteredMemory allocate(ShmBackend& backend, std::size_t bytes) {
  const Collective collective{
      .signature = {.count = bytes, .operation = Operation::allocate, .dtype = DType::uint8}};
  backend.enter(collective);
  return backend.allocate(collective).memory;
}

TEST(Regions, MemoryOfAGroupIsRegisteredInGroupsMadeFromItAndBesideIt) {
  on_threads(3, [](const std::shared_ptr<Peers>& peers) {
    ShmBackend world(peers, "world", 1min);
    const RegisteredMemory memory = allocate(world, 100);
    if (peers->rank() == 0) return;
    const auto part = peers->among({2, 1});
    ShmBackend group(part, "part", 1min);
    const RegisteredMemory more = allocate(group, 100);
    Regions in_part = view_of(part);
    Regions in_world = view_of(peers);
    for (const auto& allocated : {memory, more}) {
      const std::uint64_t location = in_part.locate(bytes_at(at(allocated, 16), 16));
      EXPECT_NE(location, 0U);
      EXPECT_EQ(in_world.locate(bytes_at(at(allocated, 16), 16)), location);
      EXPECT_EQ(in_part.address(location, part->rank()), at(allocated, 16));
      EXPECT_EQ(in_part.address(location, 0), in_world.address(location, 2));
      EXPECT_EQ(in_part.address(location, 1), in_world.address(location, 1));
    }
    EXPECT_NE(Regions::kind_of(in_part.locate(bytes_at(memory.data(), 1))),
              Regions::kind_of(in_part.locate(bytes_at(more.data(), 1))));
  });
}

// --- Sums ----------------------------------------------------------------------------------------

// Every rank's data has another offset, in memory of another kind and size.
void expect_sums_of(const ProcessGroup& group, const RegisteredMemory& memory) {
  constexpr std::size_t count = 30'000;
  const std::size_t offset = 64 * static_cast<std::size_t>(1 + group.rank());
  auto* const values = reinterpret_cast<float*>(at(memory, offset));
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i + group.rank());
  group.all_reduce({.data = values, .count = count});
  const int more = group.size() * (group.size() - 1) / 2;
  for (std::size_t i = 0; i < count; ++i)
    ASSERT_EQ(values[i], static_cast<float>(i * group.size() + more)) << i;
  group.barrier();
}

const Ranks own_memory("own memory", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  EXPECT_EQ(fault_of([&] { world.allocate_local(std::size_t{1} << 36 << 3); }), Fault::system);
  ProcessGroup pair = world.split(rank.rank / 2, -rank.rank);
  for (int round = 0; round < 3; ++round) {
    const RegisteredMemory mine = world.allocate_local((200 + 10 * rank.rank) << 10);
    const RegisteredMemory in_pair = pair.allocate_local(200 << 10);
    const RegisteredMemory common = world.allocate(200 << 10);
    std::vector<float> ordinary(50'000);
    const RegisteredMemory plain(nullptr, ordinary.data(), ordinary.size() * sizeof(float));
    for (const ProcessGroup& group : {world, pair}) {
      expect_sums_of(group, mine);
      expect_sums_of(group, in_pair);
      expect_sums_of(group, common);
      // Each rank has another kind: all use staging buffers.
      expect_sums_of(group, group.rank() == 0 ? mine : common);
      expect_sums_of(group, group.rank() == 0 ? plain : mine);
    }
  }
  destroy_process_group(world);
});

TEST(Regions, SumsAreRightInTheMemoryOfEachRankAndOfAllInEveryGroup) {
  EXPECT_TRUE(all_succeeded(own_memory.run(2)));
  EXPECT_TRUE(all_succeeded(own_memory.run(4)));
}

// A group's last handle may be destroyed while other ranks still use the group.
const Ranks one_lets_go("one lets go", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  std::optional<RegisteredMemory> common = world.allocate(200 << 10);
  const RegisteredMemory own = world.allocate_local(200 << 10);
  expect_sums_of(world, own);
  if (rank.rank == 1) common.reset();
  expect_sums_of(world, common ? *common : own);
  destroy_process_group(world);
});

TEST(Regions, ARankMayLetItsPartOfCommonMemoryGo) {
  EXPECT_TRUE(all_succeeded(one_lets_go.run(2)));
}

}  // namespace
}  // namespace lockstep::comm::regions_test
