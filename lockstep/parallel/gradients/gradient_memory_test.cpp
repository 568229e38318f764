// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/gradient_memory.h"

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdlib>
#include <optional>
#include <thread>

#include "lockstep/comm/in_process.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/tensor/collectives.h"

namespace lockstep::parallel::gradient_memory_test {
namespace {

constexpr std::int64_t rows = 300;  // Too large to be copied.
constexpr std::size_t room = rows * 1024 * sizeof(float);

torch::Tensor large() { return torch::ones({rows, 1024}); }

TEST(GradientPool, ProvidesMemoryForTensorsOfMatchingSizeWhileArmed) {
  run_in_process(2, [](ProcessGroup& world) {
    const auto pool = GradientPool::make({room, room}, world);
    const torch::Tensor before = large();
    std::optional<GradientPool::Arming> arming(pool);
    const torch::Tensor other = torch::ones({rows + 1, 1024});
    torch::Tensor first = large();
    const torch::Tensor second = large();
    const torch::Tensor third = large();  // The pool is full.
    const void* place = first.data_ptr();
    EXPECT_EQ(
        std::abs(static_cast<std::byte*>(second.data_ptr()) - static_cast<const std::byte*>(place)),
        room);
    EXPECT_EQ(pool.use_count(), 4);
    first.reset();
    EXPECT_EQ(large().data_ptr(), place);
    arming.reset();
    EXPECT_NE(large().data_ptr(), place);
    EXPECT_TRUE(torch::equal(second, third));
    EXPECT_TRUE(torch::equal(second, before));
  });
}

TEST(GradientPool, DisarmsIndependentlyOfOtherPools) {
  run_in_process(1, [](ProcessGroup& world) {
    const auto first = GradientPool::make({room}, world);
    const auto second = GradientPool::make({2 * room}, world);
    std::optional<GradientPool::Arming> begun_first(first);
    std::optional<GradientPool::Arming> begun_second(second);
    const auto lies_in = [](const GradientPool& pool, const torch::Tensor& tensor) {
      return tensor.data_ptr() == pool.memory().data();
    };
    const auto twice = [] { return torch::ones({2 * rows, 1024}); };
    EXPECT_TRUE(lies_in(*first, large()));
    EXPECT_TRUE(lies_in(*second, twice()));
    begun_first.reset();
    EXPECT_FALSE(lies_in(*first, large()));
    EXPECT_TRUE(lies_in(*second, twice()));
    begun_second.reset();
    EXPECT_FALSE(lies_in(*second, twice()));
  });
}

TEST(GradientPool, FreesRawMemoryByAddressRegardlessOfItsSource) {
  run_in_process(1, [](ProcessGroup& world) {
    void* const before = c10::GetCPUAllocator()->raw_allocate(room);
    const auto pool = GradientPool::make({room}, world);
    std::optional<GradientPool::Arming> arming(pool);
    c10::Allocator* const allocator = c10::GetCPUAllocator();
    allocator->raw_deallocate(before);
    void* const first = allocator->raw_allocate(room);
    void* const second = allocator->raw_allocate(room);  // The pool is full.
    arming.reset();
    allocator->raw_deallocate(second);
    allocator->raw_deallocate(first);
    EXPECT_EQ(pool->take(room), first);
    pool->give_back(first, room);
  });
}

TEST(GradientPool, ItsTensorsOutliveItAndTheGroupAndAreFreedOnAnyThread) {
  torch::Tensor kept[2];
  run_in_process(2, [&](ProcessGroup& world) {
    const GradientPool::Arming arming(GradientPool::make({room}, world));
    kept[world.rank()] = large();
  });
  EXPECT_EQ(kept[0].sum().item<float>(), rows * 1024);
  std::thread([&] { kept[0].reset(); }).join();
}

TEST(GradientPool, LargeGradientsAreAveragedWhereverTheyLie) {
  for (const int ranks : {2, 3})
    for (const bool overlap : {false, true})
      run_in_process(ranks, [&](ProcessGroup& world) {
        torch::nn::Linear net(1024, rows);
        DistributedDataParallel ddp(net, world, {.overlap = overlap});
        const torch::Tensor ones = torch::ones({2, 1024});
        torch::Tensor held;
        for (int step = 0; step < 6; ++step) {
          const double expected = 2.0 * (ranks - 1) / 2 + 2 * step;
          if (step != 4) net->zero_grad(/*set_to_none=*/step % 2 == 0);
          const double before = step == 4 ? net->weight.grad()[0][0].item<double>() : 0;
          const auto loss = ddp(ones * (world.rank() + step)).sum();
          loss.backward();
          EXPECT_TRUE(
              torch::allclose(net->weight.grad(), torch::full({rows, 1024}, expected + before)))
              << "step " << step;
          EXPECT_TRUE(torch::equal(net->bias.grad(), torch::full({rows}, step == 4 ? 4.0F : 2.0F)));
          if (step == 2 && world.rank() == 0) held = net->weight.grad();
        }
        if (held.defined()) {
          EXPECT_TRUE(held.isfinite().all().item<bool>());
        }
      });
}

}  // namespace
}  // namespace lockstep::parallel::gradient_memory_test
