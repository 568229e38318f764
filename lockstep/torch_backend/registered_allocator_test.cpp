// SPDX-License-Identifier: Apache-2.0
#include "lockstep/torch_backend/registered_allocator.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/torch_backend/registered_blocks.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::torch_backend::registered_allocator_test {
namespace {

using Demand = RegisteredTensors::Demand;
using test::fault_of;
using test::Rank;
using test::Ranks;

constexpr std::size_t mb = std::size_t{1} << 20;
constexpr std::size_t no_limit = std::size_t{1} << 40;

// Pages that a forked child shares with this process, as registered memory.
RegisteredMemory shared_pages(std::size_t bytes) {
  const auto pages = std::make_shared<SharedMapping>(SharedMapping::create("a test", bytes));
  return {pages, pages->data(), bytes};
}

// Runs `act` in a forked child and returns whether it returned true.
bool holds_in_child(const std::function<bool()>& act) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(act() ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

RegisteredAllocator& opened() {
  RegisteredAllocator& allocator = RegisteredAllocator::instance();
  allocator.open(shared_pages);
  return allocator;
}

at::Tensor bytes_of(std::size_t bytes, Demand demand = Demand::none) {
  const RegisteredTensors scope(demand);
  return at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
}

// --- Blocks --------------------------------------------------------------------------------------

TEST(RegisteredBlocks, AllocateALittleMoreEachTimeAndUseItAgain) {
  std::vector<std::size_t> regions;
  RegisteredBlocks blocks;
  blocks.open([&](std::size_t bytes) {
    regions.push_back(bytes);
    return shared_pages(bytes);
  });
  std::vector<void*> taken;
  for (int i = 0; i < 9; ++i) taken.push_back(blocks.take(mb, no_limit));
  EXPECT_EQ(regions, (std::vector<std::size_t>{4 * mb, 4 * mb, 8 * mb}));
  for (void* const block : taken) EXPECT_TRUE(blocks.give_back(block));
  for (int i = 0; i < 16; ++i) EXPECT_NE(blocks.take(mb, no_limit), nullptr);
  EXPECT_EQ(regions.size(), 3U);
  EXPECT_NE(blocks.take(100 * mb + 1, no_limit), nullptr);
  EXPECT_EQ(regions.back(), 101 * mb);
}

TEST(RegisteredBlocks, HaveALimitWhereTheyAreNotRequired) {
  RegisteredBlocks blocks;
  blocks.open(shared_pages);
  EXPECT_EQ(blocks.take(mb, 4 * mb - 1), nullptr);
  void* const block = blocks.take(mb, 4 * mb);
  EXPECT_TRUE(blocks.contains(block));
  EXPECT_EQ(blocks.take(4 * mb, 4 * mb), nullptr);
  EXPECT_NE(blocks.require(4 * mb), nullptr);
}

TEST(RegisteredBlocks, AreRequestedOnceOnAHostWithTooLittleMemory) {
  int asked = 0;
  RegisteredBlocks blocks;
  blocks.open([&](std::size_t) -> RegisteredMemory {
    ++asked;
    throw Error(Fault::system, "too little");
  });
  EXPECT_EQ(blocks.take(mb, no_limit), nullptr);
  EXPECT_EQ(blocks.take(mb, no_limit), nullptr);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(fault_of([&] { blocks.require(mb); }), Fault::system);
}

TEST(RegisteredBlocks, GiveNothingOnceClosedAndKeepWhatIsInUse) {
  RegisteredBlocks blocks;
  EXPECT_EQ(blocks.take(mb, no_limit), nullptr);
  blocks.open(shared_pages);
  auto* const block = static_cast<char*>(blocks.take(mb, no_limit));
  blocks.close();
  EXPECT_FALSE(blocks.is_open());
  EXPECT_EQ(blocks.take(mb, no_limit), nullptr);
  EXPECT_EQ(fault_of([&] { blocks.require(mb); }), Fault::misuse);
  block[mb - 1] = 1;
  EXPECT_TRUE(blocks.give_back(block));
  EXPECT_FALSE(blocks.give_back(block));
}

TEST(RegisteredBlocks, AreGivenBackWhileARegionIsAllocated) {
  void* block = nullptr;
  RegisteredBlocks blocks;
  blocks.open([&](std::size_t bytes) {
    if (block != nullptr)
      std::thread([&] { EXPECT_TRUE(blocks.contains(block) && blocks.give_back(block)); }).join();
    return shared_pages(bytes);
  });
  block = blocks.take(mb, no_limit);
  EXPECT_NE(blocks.take(5 * mb, no_limit), nullptr);
  EXPECT_FALSE(blocks.give_back(block));
}

TEST(RegisteredBlocks, CanBeQueriedWhileAnEarlierSourceIsDestroyed) {
  RegisteredBlocks blocks;
  bool gone = false;
  std::shared_ptr<void> owned(nullptr, [&](void*) { gone = !blocks.contains(&blocks); });
  blocks.open([owned](std::size_t bytes) { return shared_pages(bytes); });
  owned.reset();
  blocks.open(shared_pages);
  EXPECT_TRUE(gone);
}

// --- Children ------------------------------------------------------------------------------------

TEST(RegisteredAllocator, AChildWritesToItsOwnCopy) {
  opened();
  const at::Tensor tensor = bytes_of(5 * mb, Demand::always).fill_(7);
  const at::Tensor other = bytes_of(100, Demand::always).fill_(7);
  EXPECT_TRUE(holds_in_child([&] {
    for (const at::Tensor& each : {tensor, other}) {
      auto* const values = each.data_ptr<std::uint8_t>();
      if (values[0] != 7 || values[each.numel() - 1] != 7) return false;
      values[0] = values[each.numel() - 1] = 8;
      if (values[0] != 8) return false;
    }
    return true;
  }));
  for (const at::Tensor& each : {tensor, other}) {
    EXPECT_EQ(each[0].item<int>(), 7);
    EXPECT_EQ(each[-1].item<int>(), 7);
  }
}

TEST(RegisteredAllocator, AChildDoesNotSeeWhatItsParentWritesLater) {
  opened();
  const at::Tensor tensor = bytes_of(mb, Demand::always).fill_(7);
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    const bool came = ::read(ready[0], &byte, 1) == 1;
    ::_exit(came && *tensor.data_ptr<std::uint8_t>() == 7 ? 0 : 1);
  }
  tensor.fill_(9);
  EXPECT_EQ(::write(ready[1], "x", 1), 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(RegisteredAllocator, AChildTakesNoBlocksAndItsOwnChildrenHaveCopiesToo) {
  const RegisteredAllocator& allocator = opened();
  std::optional<at::Tensor> tensor = bytes_of(mb, Demand::always).fill_(7);
  EXPECT_TRUE(holds_in_child([&] {
    tensor->data_ptr<std::uint8_t>()[0] = 8;
    const bool is_private = holds_in_child([&] {
      auto* const values = tensor->data_ptr<std::uint8_t>();
      return std::exchange(values[0], 9) == 8;
    });
    if (!is_private || tensor->data_ptr<std::uint8_t>()[0] != 8) return false;
    tensor.reset();
    return !allocator.is_open() && !allocator.contains(bytes_of(mb, Demand::if_there_is_memory)) &&
           fault_of([] { bytes_of(mb, Demand::always); }) == Fault::misuse;
  }));
  EXPECT_EQ((*tensor)[0].item<int>(), 7);
  EXPECT_TRUE(allocator.is_open());
}

// --- Tensors -------------------------------------------------------------------------------------

TEST(RegisteredAllocator, GivesBlocksToTensorsOfAScopeOnItsThread) {
  const RegisteredAllocator& allocator = opened();
  const RegisteredTensors scope(Demand::if_there_is_memory);
  const at::Tensor large = at::empty({100'000}, at::kByte);
  EXPECT_TRUE(allocator.contains(large));
  EXPECT_FALSE(allocator.contains(at::empty({1000}, at::kByte)));
  {
    const RegisteredTensors inner(Demand::none);
    EXPECT_FALSE(allocator.contains(at::empty({100'000}, at::kByte)));
  }
  EXPECT_TRUE(allocator.contains(at::empty({100'000}, at::kByte)));
  std::thread([&] { EXPECT_FALSE(allocator.contains(at::empty({100'000}, at::kByte))); }).join();
}

TEST(RegisteredAllocator, GivesBlocksToTensorsAsLargeAsThoseThatCollectivesHadToCopy) {
  RegisteredAllocator& allocator = opened();
  constexpr std::size_t size = 123'456;
  EXPECT_FALSE(allocator.contains(bytes_of(size)));
  allocator.note_moved(bytes_of(size).narrow(0, 5, 100));  // The allocated size counts.
  EXPECT_TRUE(allocator.contains(bytes_of(size)));
  EXPECT_FALSE(allocator.contains(bytes_of(size + 1)));
  allocator.note_moved(bytes_of(1000));
  EXPECT_FALSE(allocator.contains(bytes_of(1000)));
  allocator.close();
  EXPECT_FALSE(allocator.contains(bytes_of(size)));
}

TEST(RegisteredAllocator, ItsTensorsOutliveTheGroupAndGrowAsOthersDo) {
  RegisteredAllocator& allocator = opened();
  at::Tensor tensor = bytes_of(mb, Demand::always).fill_(3);
  allocator.close();
  tensor.resize_({3'000'000});
  EXPECT_EQ(tensor[mb - 1].item<int>(), 3);
  std::thread([gone = std::move(tensor)]() mutable { gone.reset(); }).join();
}

// As oneDNN frees it.
TEST(RegisteredAllocator, FreesRawMemoryByItsAddress) {
  RegisteredAllocator& allocator = opened();
  for (const Demand demand : {Demand::none, Demand::always, Demand::none}) {
    const RegisteredTensors scope(demand);
    void* const memory = allocator.raw_allocate(mb);
    static_cast<char*>(memory)[mb - 1] = 1;
    allocator.raw_deallocate(memory);
  }
}

// --- Sums ----------------------------------------------------------------------------------------

void expect_sum(const ProcessGroup& group, const at::Tensor& tensor) {
  tensor.copy_(at::arange(tensor.numel()) + group.rank());
  group.all_reduce({.data = tensor.data_ptr(), .count = static_cast<std::size_t>(tensor.numel())});
  const int more = group.size() * (group.size() - 1) / 2;
  EXPECT_TRUE(tensor.equal((at::arange(tensor.numel()) * group.size() + more).to(at::kFloat)));
}

const Ranks sums_beside_children("sums beside children", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  RegisteredAllocator& allocator = RegisteredAllocator::instance();
  allocator.open([&](std::size_t bytes) { return world.allocate_local(bytes); });
  const RegisteredTensors scope(Demand::always);
  // At different addresses.
  const at::Tensor before = at::empty({100'000 * (rank.rank + 1)}, at::kFloat);
  const at::Tensor tensor = at::empty({50'000}, at::kFloat);
  ProcessGroup pair = world.split(rank.rank / 2);
  for (int round = 0; round < 3; ++round) {
    for (const ProcessGroup& group : {world, pair}) expect_sum(group, tensor);
    EXPECT_TRUE(holds_in_child([&] {
      tensor.data_ptr<float>()[0] = -1;
      return tensor.data_ptr<float>()[0] == -1;
    }));
  }
  allocator.close();
  destroy_process_group(world);
  EXPECT_EQ(fault_of([] { at::empty({50'000}); }), Fault::misuse) << "there is no group";
});

TEST(RegisteredAllocator, RanksSumItsTensorsInEveryGroupWhileTheyFork) {
  EXPECT_TRUE(all_succeeded(sums_beside_children.run(2)));
  EXPECT_TRUE(all_succeeded(sums_beside_children.run(4)));
}

}  // namespace
}  // namespace lockstep::torch_backend::registered_allocator_test
