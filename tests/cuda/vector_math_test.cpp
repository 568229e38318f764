// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/vector_math.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <memory>

#include "lockstep/parallel/replicate/distributed_data_parallel.h"
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

// Each in a process of its own, where nobody has called it yet.
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
    DistributedDataParallel<torch::nn::LinearImpl> ddp(net, group, {.deterministic = 2});
    torch::ones({8}).exp();
    destroy_process_group(group);
  });
  EXPECT_EQ(first_vector_call(), VectorCalls::alone);
});

TEST_F(VectorMath, IsSettledBeforeRanksOnTheStandInCompute) {
  EXPECT_TRUE(all_succeeded(of_stand_in.run(1)));
}

TEST_F(VectorMath, IsSettledByDeterministicPasses) {
  EXPECT_TRUE(all_succeeded(of_deterministic.run(1)));
}

}  // namespace
}  // namespace lockstep
