// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/owned_gradients.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/in_process.h"
#include "lockstep/optim/clip_grad_norm.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "tests/fault_of.h"

namespace lockstep::parallel::owned_gradients_test {
namespace {

using test::fault_of;
using Options = DistributedDataParallelOptions;
using Zero = ZeroRedundancyOptimizer<torch::optim::Adam>;
using torch::optim::AdamOptions;

struct Net : torch::nn::Module {
  Net() {
    for (const auto& [in, out] : {std::pair{20, 300}, {300, 300}, {300, 7}})
      layers.push_back(
          register_module("layer" + std::to_string(layers.size()), torch::nn::Linear(in, out)));
  }
  torch::Tensor forward(torch::Tensor x, bool all = true) {
    x = layers[0]->forward(x).tanh();
    if (all) x = layers[1]->forward(x).tanh();
    return layers[2]->forward(x);
  }

  std::vector<torch::nn::Linear> layers;
};

torch::Tensor input(int rank, int step) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 * step + rank));
  return torch::randn({8, 20}, generator);
}

struct Training {
  Training(ProcessGroup& world, int stage, const Options& options = {})
      : ddp(net, world, options), zero(net->parameters(), world, AdamOptions(1e-2)) {
    if (stage == 2) ddp.shard_gradients(zero);
  }

  void pass(const torch::Tensor& x, bool all = true) { ddp(x, all).pow(2).mean().backward(); }

  std::shared_ptr<Net> net = std::make_shared<Net>();
  DistributedDataParallel<Net> ddp;
  Zero zero;
};

std::vector<at::Tensor> trained(ProcessGroup& world, int stage, const Options& options) {
  Training training(world, stage, options);
  {
    const at::NoGradGuard no_grad;
    int i = 0;
    for (const at::Tensor& weight : training.net->parameters())
      weight.copy_(torch::arange(weight.numel()).view(weight.sizes()).sin().mul(0.1 + 0.01 * i++));
  }
  for (int step = 0; step < 8; ++step) {
    training.zero.zero_grad();
    if (step % 2 == 1) {
      const auto no_sync = training.ddp.no_sync();
      training.pass(input(world.rank(), 100 + step));
    }
    const bool all = !options.find_unused_parameters || (step + world.rank()) % 2 == 0;
    if (options.mean == GradientMean::over_samples) training.ddp.count_samples(8 + world.rank());
    training.pass(input(world.rank(), step), all);
    if (step % 3 == 2) {
      const double whole = clip_grad_norm_(training.net->parameters(), 1e9).item<double>();
      const double total = training.zero.clip_grad_norm_(0.01);
      if (stage == 1) {
        EXPECT_NEAR(total, whole, 1e-5 * whole);
      }
    }
    training.zero.step();
  }
  return training.net->parameters();
}

void expect_as_stage_1(int ranks, const Options& options, double tolerance) {
  run_in_process(ranks, [&](ProcessGroup& world) {
    const auto one = trained(world, 1, options);
    const auto two = trained(world, 2, options);
    for (std::size_t i = 0; i < one.size(); ++i)
      EXPECT_LE((one[i] - two[i]).abs().max().item<double>(), tolerance) << i;
  });
}

TEST(OwnedGradients, TrainAsWholeOnesDoToTheBitOnTwoRanks) {
  for (const bool overlap : {false, true}) {
    expect_as_stage_1(2, {.overlap = overlap}, 0);
    expect_as_stage_1(2, {.find_unused_parameters = true, .overlap = overlap}, 0);
    expect_as_stage_1(2, {.bucket_cap_mb = 0.05, .overlap = overlap}, 0);
  }
  expect_as_stage_1(2, {.static_graph = true}, 0);
  expect_as_stage_1(2, {.mean = GradientMean::over_samples}, 0);
  expect_as_stage_1(3, {}, 1e-4);
  expect_as_stage_1(1, {}, 0);
}

TEST(OwnedGradients, OnlyTheOwnerHasThemAfterBackward) {
  run_in_process(3, [](ProcessGroup& world) {
    Training training(world, 2);
    training.pass(input(world.rank(), 0));
    std::size_t held = 0;
    std::size_t owned = 0;
    for (const at::Tensor& weight : training.net->parameters()) {
      const bool is_owner = training.zero.owner(weight) == world.rank();
      EXPECT_EQ(weight.grad().defined(), is_owner);
      if (weight.grad().defined()) held += weight.grad().storage().nbytes();
      if (is_owner) owned += weight.nbytes();
    }
    EXPECT_EQ(held, owned);
  });
}

TEST(OwnedGradients, ThoseThatNoRankUsedStayUndefined) {
  run_in_process(2, [](ProcessGroup& world) {
    Training training(world, 2, {.find_unused_parameters = true});
    training.pass(input(world.rank(), 0), false);
    EXPECT_FALSE(training.net->layers[1]->weight.grad().defined());
    training.zero.step();
    training.zero.zero_grad();
    training.pass(input(world.rank(), 1), world.rank() == 0);
    const at::Tensor& weight = training.net->layers[1]->weight;
    EXPECT_EQ(weight.grad().defined(), training.zero.owner(weight) == world.rank());
  });
}

TEST(OwnedGradients, AMeanThatIsStillThereIsMisuseOnAllRanks) {
  run_in_process(2, [](ProcessGroup& world) {
    Training training(world, 2);
    training.pass(input(world.rank(), 0));
    std::string text;
    EXPECT_EQ(fault_of([&] { training.pass(input(world.rank(), 1)); }, &text), Fault::misuse);
    EXPECT_NE(text.find("zero_grad()"), std::string::npos) << text;
    training.pass(input(world.rank(), 2));
    training.zero.step();
  });
}

TEST(OwnedGradients, MissingAndNonFiniteOnesAreErrorsOnAllRanks) {
  run_in_process(2, [](ProcessGroup& world) {
    Training training(world, 2);
    const auto fault = [&](const torch::Tensor& x, bool all) {
      const Fault result = fault_of([&] { training.pass(x, all); });
      for (const at::Tensor& weight : training.net->parameters())
        EXPECT_FALSE(weight.grad().defined());
      return result;
    };
    EXPECT_EQ(fault(input(world.rank(), 0), world.rank() == 0), Fault::misuse);
    const double factor = world.rank() == 1 ? std::numeric_limits<double>::quiet_NaN() : 1;
    EXPECT_EQ(fault(input(world.rank(), 0) * factor, true), Fault::corrupt);
    training.pass(input(world.rank(), 0));
  });
}

TEST(OwnedGradients, AreChosenOnceBeforeTheFirstPassAndNotWithHooksOrJoin) {
  run_in_process(2, [](ProcessGroup& world) {
    const auto shard = [](Training& training) {
      return fault_of([&] { training.ddp.shard_gradients(training.zero); });
    };
    Training late(world, 1);
    late.pass(input(world.rank(), 0));
    EXPECT_EQ(shard(late), Fault::misuse);
    Training twice(world, 2);
    EXPECT_EQ(shard(twice), Fault::misuse);
    EXPECT_EQ(fault_of([&] { twice.ddp.join([] {}); }), Fault::unsupported);
    EXPECT_EQ(fault_of([&] { twice.ddp.register_comm_hook([](GradientBucket&) {}); }),
              Fault::unsupported);
    Training hooked(world, 1);
    hooked.ddp.register_comm_hook([](GradientBucket&) {});
    EXPECT_EQ(shard(hooked), Fault::unsupported);
    Training other(world, 1);
    EXPECT_EQ(fault_of([&] { other.ddp.shard_gradients(twice.zero); }), Fault::misuse);
  });
}

}  // namespace
}  // namespace lockstep::parallel::owned_gradients_test
