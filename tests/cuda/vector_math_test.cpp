// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/vector_math.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/parallel/deterministic/deterministic_data_parallel.h"
#include "tests/cuda/first_vector_call.h"
#include "tests/cuda/trained.h"
#include "tests/ranks.h"

namespace lockstep {
namespace {

using namespace test;

class VectorMath : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_vector_calls()) GTEST_SKIP() << "LibTorch's vector math is not oneMKL's";
  }
};

// Each runs in its own process, which has not called it yet.
const Ranks of_stand_in("vector math under the stand-in", [](const Rank&) {
  hold_up_first_vector_call();
  stand_in_for_cuda();
  trained(Place::cpu, 2, [](ProcessGroup&, const auto&) {});
  EXPECT_EQ(first_vector_call(), VectorCalls::alone);
});

const Ranks of_deterministic("vector math with deterministic", [](const Rank&) {
  torch::set_num_threads(1);
  hold_up_first_vector_call();
  StandInDevices none;
  run_on(2, none, [](ProcessGroup& group) {
    auto net = std::make_shared<torch::nn::LinearImpl>(2, 2);
    DeterministicDataParallel ddp(net, group, {.microbatches = 2});
    torch::ones({8}).exp();
    destroy_process_group(group);
  });
  EXPECT_EQ(first_vector_call(), VectorCalls::alone);
});

// Computes on two threads at once, as the first use in this process, and then on one. Returns the
// number of different values.
std::int64_t unequal_to_serial(bool is_settled) {
  torch::set_num_threads(1);
  // Unsettled threads call at once, even if one of them starts late.
  hold_up_first_vector_call(is_settled ? std::chrono::milliseconds(300) : std::chrono::seconds(20));
  const at::Tensor values = torch::linspace(-4, 4, 4096);
  const auto compute = [&] { return torch::stack({values.sin(), values.exp(), values.tanh()}); };
  std::array<at::Tensor, 2> of_threads;
  std::vector<std::thread> threads;
  for (at::Tensor& result : of_threads)
    threads.emplace_back([&] {
      if (is_settled) settle_vector_math();
      result = compute();
    });
  for (std::thread& thread : threads) thread.join();
  const at::Tensor serial = compute();
  std::int64_t unequal = 0;
  for (const at::Tensor& result : of_threads) unequal += result.ne(serial).sum().item().toLong();
  return unequal;
}

const Ranks of_settled("vector math of threads that settle it", [](const Rank&) {
  EXPECT_EQ(unequal_to_serial(true), 0);
  EXPECT_EQ(first_vector_call(), VectorCalls::alone);
});

const Ranks of_unsettled("vector math of threads that do not settle it", [](const Rank&) {
  EXPECT_GT(unequal_to_serial(false), 0);
  EXPECT_EQ(first_vector_call(), VectorCalls::met);
});

TEST_F(VectorMath, IsThatOfASerialProgramOnThreadsThatSettleIt) {
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(all_succeeded(of_settled.run(1)));
}

// Shows that the test above can fail.
TEST_F(VectorMath, DiffersOnThreadsThatRaceInItsFirstCall) {
  for (int i = 0; i < 4; ++i) {
    const Exit exit = of_unsettled.run(1).front();
    if (exit.signal == SIGSEGV || exit.signal == SIGILL)
      GTEST_SKIP() << "this processor cannot run the kernels of another one";
    EXPECT_EQ(exit.code, 0) << exit.output;
  }
}

TEST_F(VectorMath, IsSettledBeforeRanksOnTheStandInCompute) {
  EXPECT_TRUE(all_succeeded(of_stand_in.run(1)));
}

TEST_F(VectorMath, IsSettledByDeterministicPasses) {
  EXPECT_TRUE(all_succeeded(of_deterministic.run(1)));
}

}  // namespace
}  // namespace lockstep
