// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/registered_pool.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/summed.h"
#include "tests/fault_of.h"

namespace lockstep::tensor::registered_pool_test {
namespace {

using Bytes = std::int64_t;

at::Tensor bytes_of(Bytes size, const ProcessGroup& group) {
  return RegisteredPool::of(group)->empty({size}, at::kByte, group);
}

const char* place(const at::Tensor& tensor) {
  return static_cast<const char*>(tensor.const_data_ptr());
}

bool lies_in(const char* begin, Bytes size, const at::Tensor& tensor) {
  return place(tensor) >= begin && place(tensor) + tensor.nbytes() <= begin + size;
}

constexpr Bytes region = RegisteredPool::least_bytes;

RegisteredMemory ordinary(std::vector<char>& memory) {
  return {nullptr, memory.data(), memory.size()};
}

TEST(RegisteredRegion, JoinsNeighboursInWhateverOrderTheyAreGivenBack) {
  std::vector<std::size_t> order{0, 1, 2, 3};
  do {
    alignas(64) char memory[4 * 64];
    RegisteredRegion all({nullptr, memory, sizeof memory});
    std::vector<void*> blocks;
    for (int i = 0; i < 4; ++i) blocks.push_back(all.take(64 - i));
    EXPECT_EQ(all.take(1), nullptr);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(blocks[i], memory + 64 * i);
    for (const std::size_t i : order) all.give_back(blocks[i]);
    void* const whole = all.take(sizeof memory);
    EXPECT_EQ(whole, memory);
    all.give_back(whole);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(RegisteredRegion, GivesABlockThatIsTooSmallToNobody) {
  std::vector<char> memory(256);
  RegisteredRegion all(ordinary(memory));
  void* const first = all.take(64);
  void* const second = all.take(64);
  all.give_back(first);
  EXPECT_NE(all.take(128), first);
  EXPECT_EQ(all.take(64), first);
  EXPECT_NE(second, first);
}

TEST(RegisteredPool, UsesTheMemoryOfATensorThatIsGoneAgain) {
  run_in_process(2, [](ProcessGroup& group) {
    std::optional<at::Tensor> first = bytes_of(100'000, group);
    const at::Tensor view = first->narrow(0, 5, 10);
    const char* const begin = place(*first);
    first.reset();
    EXPECT_NE(place(bytes_of(100'000, group)), begin) << "a view still uses it";
    const at::Tensor other = bytes_of(50'000, group);
    EXPECT_TRUE(lies_in(begin, region, other));
    EXPECT_TRUE(other.is_contiguous() && other.size(0) == 50'000);
  });
  run_in_process(2, [](ProcessGroup& group) {
    const char* const begin = place(bytes_of(100'000, group));
    for (const Bytes size : {100'000, 5'000, 70'001, 524'288})
      for (int i = 0; i < 50; ++i) EXPECT_EQ(place(bytes_of(size, group)), begin);
  });
}

TEST(RegisteredPool, ProvidesOrdinaryMemoryWhenFullOrForFewBytes) {
  run_in_process(2, [](ProcessGroup& group) {
    std::vector<at::Tensor> held{bytes_of(region / 2, group), bytes_of(region / 2, group)};
    const char* const begin = place(held[0]);
    EXPECT_TRUE(lies_in(begin, region, held[1]));
    EXPECT_FALSE(lies_in(begin, region, bytes_of(10'000, group)));
    held.pop_back();
    EXPECT_TRUE(lies_in(begin, region, bytes_of(10'000, group)));
    EXPECT_FALSE(lies_in(begin, region, bytes_of(RegisteredPool::small_bytes, group)));
    EXPECT_FALSE(lies_in(begin, region, bytes_of(0, group)));
  });
}

TEST(RegisteredPool, GrowsWithTheLargestTensorUpToItsBound) {
  run_in_process(2, [](ProcessGroup& group) {
    const at::Tensor small = bytes_of(10'000, group).fill_(7);
    const at::Tensor large = bytes_of(2 * region, group), second = bytes_of(2 * region, group);
    EXPECT_TRUE(lies_in(place(large), 4 * region, second));
    EXPECT_TRUE(at::equal(small, at::full({10'000}, 7, at::kByte)));
    bytes_of(RegisteredPool::most_bytes / 2 + 1, group);  // Ordinary memory.
    EXPECT_FALSE(lies_in(place(large), 4 * region, bytes_of(10'000, group)));
  });
}

// Free capacity may differ between ranks.
TEST(RegisteredPool, SumsAreRightInOrOutsideOfItsMemory) {
  for (const int ranks : {2, 3})
    run_in_process(ranks, [](ProcessGroup& group) {
      std::vector<at::Tensor> held;
      for (int i = 0; i < 12; ++i) {
        const Bytes elements = i % 3 == 0 ? 40'000 : 3'001;
        const at::Tensor sum = summed(
            {elements}, at::kFloat, group, {.label = "sum"},
            [&](const at::Tensor& x) { x.copy_(at::arange(elements) % 1000 + group.rank()); });
        const auto others = group.size() * (group.size() - 1) / 2;
        EXPECT_TRUE(
            at::equal(sum, (at::arange(elements) % 1000 * group.size() + others).to(at::kFloat)));
        if (i % (group.rank() + 2) == 0) held.push_back(sum);
      }
      for (const at::Tensor& sum : held)  // As at its creation.
        EXPECT_EQ(sum[1].item<float>() - sum[0].item<float>(), static_cast<float>(group.size()));
    });
}

TEST(RegisteredPool, TensorsOutliveTheGroupAndAreFreedOnOtherThreads) {
  std::vector<at::Tensor> tensors(2);
  run_in_process(2, [&](ProcessGroup& group) {
    tensors[static_cast<std::size_t>(group.rank())] = bytes_of(20'000, group).fill_(group.rank());
    const at::Tensor other = bytes_of(20'000, group);
    std::thread([gone = other.alias()]() mutable { gone.reset(); }).join();
  });
  for (const std::size_t rank : {0, 1}) {
    EXPECT_TRUE(at::equal(tensors[rank], at::full({20'000}, static_cast<double>(rank), at::kByte)));
    tensors[rank].resize_({3'000'000}).fill_(1);  // As any other tensor.
  }
  std::thread([gone = std::move(tensors)]() mutable { gone.clear(); }).join();
}

TEST(RegisteredPool, EndsWithItsGroup) {
  run_in_process(2, [](ProcessGroup& group) {
    ProcessGroup part = group.split(0);
    const std::weak_ptr<RegisteredPool> pool = RegisteredPool::of(part);
    EXPECT_EQ(RegisteredPool::of(part), pool.lock());
    EXPECT_NE(RegisteredPool::of(group), pool.lock());
    bytes_of(10'000, part);
    destroy_process_group(part);
    EXPECT_TRUE(pool.expired());
    EXPECT_EQ(test::fault_of([&] { bytes_of(10'000, part); }), Fault::misuse);
  });
}

}  // namespace
}  // namespace lockstep::tensor::registered_pool_test
