// tests/python/pruning_test.py compares masks with Python's.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/prune/pruning_masks.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/in_process.h"
#include "lockstep/nn/layers.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/tensor_parallel/parallelize_module.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/toolkit/prune/gradual_pruner.h"
#include "tests/fault_of.h"

namespace lockstep::prune::pruning_masks_test {
namespace {

using test::fault_of;

torch::nn::Sequential two_layers() {
  return torch::nn::Sequential(torch::nn::Linear(20, 30), torch::nn::Linear(30, 5));
}

at::Tensor weight_of(const torch::nn::Sequential& model) {
  return model->named_parameters()["0.weight"];
}

// Ranks would choose different masks.
at::Tensor weights_of_rank(int rank, const at::Tensor& parameter) {
  const at::Tensor values = torch::linspace(-1, 2, parameter.numel()).view_as(parameter);
  return rank == 0 ? values : values.flip(0);
}

TEST(PruningMasks, RoundsSharesAsPythonDoes) {
  EXPECT_EQ(PruningAmount(0.5).of(5), 2);
  EXPECT_EQ(PruningAmount(0.5).of(7), 4);
  EXPECT_EQ(PruningAmount(3).of(3), 3);
  EXPECT_EQ(fault_of([] { PruningAmount(4).of(3); }), Fault::misuse);
  EXPECT_EQ(fault_of([] { PruningAmount(1.5).of(3); }), Fault::misuse);
}

TEST(PruningMasks, PrunesAmongWhatIsLeft) {
  auto model = two_layers();
  PruningMasks masks(*model, ProcessGroup::self());
  const at::Tensor values = weight_of(model).detach().abs().flatten().clone();
  masks.l1_unstructured("0.weight", 0.5);
  masks.l1_unstructured("0.weight", 0.5);
  EXPECT_EQ(masks.mask("0.weight").sum().item<int>(), 150);
  const at::Tensor largest = std::get<1>(values.topk(150));
  EXPECT_TRUE(masks.mask("0.weight").flatten().index_select(0, largest).all().item<bool>());
  EXPECT_TRUE(torch::equal(weight_of(model).ne(0), masks.mask("0.weight")));
  EXPECT_NEAR(masks.sparsity(), 0.75, 1e-12);
}

TEST(PruningMasks, KeepsZerosInWeightsAndMoments) {
  torch::manual_seed(1);
  auto model = two_layers();
  Adam adam(model->parameters(), torch::optim::AdamOptions(0.1).weight_decay(0.1));
  PruningMasks masks(*model, ProcessGroup::self());
  const auto step = [&] {
    adam.zero_grad();
    model->forward(torch::randn({4, 20})).square().mean().backward();
    adam.step();
    masks.apply(adam);
  };
  step();
  masks.ln_structured("0.weight", 10, /*norm=*/2, /*dim=*/0);
  for (int i = 0; i < 3; ++i) step();
  const at::Tensor mask = masks.mask("0.weight");
  EXPECT_EQ(mask.any(1).sum().item<int>(), 20);
  EXPECT_TRUE(torch::equal(weight_of(model).ne(0), mask));
  auto& state = *adam.state().at(weight_of(model).unsafeGetTensorImpl());
  EXPECT_TRUE(torch::equal(parts_of(state).tensors.at(0).second->ne(0), mask));
  masks.remove("0.weight");
  EXPECT_FALSE(masks.mask("0.weight").defined());
  step();
  EXPECT_GT(weight_of(model).ne(0).sum().item<int>(), 400);
}

TEST(PruningMasks, AreThoseOfRank0) {
  std::vector<at::Tensor> made(2);
  run_in_process(2, [&](ProcessGroup& world) {
    auto model = two_layers();
    for (const at::Tensor& parameter : model->parameters())
      parameter.detach().copy_(weights_of_rank(world.rank(), parameter));
    PruningMasks masks(*model, world);
    masks.l1_unstructured("0.weight", 0.4);
    masks.global_l1_unstructured({"0.weight", "1.weight"}, 0.5);
    made[static_cast<std::size_t>(world.rank())] = masks.mask("0.weight");
  });
  EXPECT_TRUE(torch::equal(made[0], made[1]));
  EXPECT_LT(made[0].sum().item<int>(), 360);
}

TEST(PruningMasks, AreLoadedAgain) {
  auto model = two_layers();
  PruningMasks masks(*model, ProcessGroup::self());
  masks.random_structured("0.weight", 0.3, 1);
  auto other = two_layers();
  PruningMasks loaded(*other, ProcessGroup::self());
  loaded.l1_unstructured("1.weight", 0.5);
  loaded.wanted(masks.state_dict());
  loaded.load_state_dict(masks.state_dict());
  EXPECT_TRUE(torch::equal(loaded.mask("0.weight"), masks.mask("0.weight")));
  EXPECT_FALSE(loaded.mask("1.weight").defined());
  EXPECT_TRUE(torch::equal(weight_of(other).ne(0), masks.mask("0.weight")));
  auto small = torch::nn::Sequential(torch::nn::Linear(2, 3));
  PruningMasks mismatch(*small, ProcessGroup::self());
  EXPECT_EQ(fault_of([&] { mismatch.wanted(masks.state_dict()); }), Fault::misuse);
}

TEST(PruningMasks, HaveOneOfATiedWeight) {
  struct Tied : torch::nn::Module {
    Tied() {
      b->register_parameter("weight", a->weight);
      register_module("a", a), register_module("b", b);
    }
    torch::nn::Linear a{torch::nn::LinearOptions(10, 10).bias(false)};
    std::shared_ptr<torch::nn::Module> b = std::make_shared<torch::nn::Module>("b");
  } model;
  PruningMasks masks(model, ProcessGroup::self());
  masks.global_l1_unstructured({"a.weight", "b.weight"}, 30);
  EXPECT_EQ(masks.mask("a.weight").sum().item<int>(), 70);
  EXPECT_TRUE(torch::equal(masks.mask("b.weight"), masks.mask("a.weight")));
  masks.l1_unstructured("b.weight", 10);
  EXPECT_EQ(masks.mask("a.weight").sum().item<int>(), 60);
  EXPECT_EQ(masks.state_dict().tensors.size(), 1U);
  masks.remove("b.weight");
  EXPECT_EQ(masks.sparsity(), 0);
}

TEST(PruningMasks, RefuseLayersThatAreCutOverRanks) {
  run_in_process(2, [](ProcessGroup& world) {
    struct Module : torch::nn::Module {
      Module() { register_module("layer", layer); }
      nn::Linear layer{4, 4};
    } module;
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : module.parameters()) parameter.fill_(1);  // Equal on all ranks.
    parallelize_module(module, world, {{"layer", ColwiseParallel()}});
    EXPECT_EQ(fault_of([&] { PruningMasks(module, world); }), Fault::unsupported);
  });
}

TEST(PruningMasks, RefusesWhatIsNotThere) {
  auto model = two_layers();
  PruningMasks masks(*model, ProcessGroup::self());
  EXPECT_EQ(fault_of([&] { masks.l1_unstructured("2.weight", 0.5); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { masks.ln_structured("0.bias", 1, 2, 0); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { masks.ln_structured("0.weight", 1, 2, 2); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { masks.custom_from_mask("0.weight", torch::ones({3})); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { masks.remove("0.weight"); }), Fault::misuse);
}

// --- GradualPruner -------------------------------------------------------------------------------

const GradualPrunerOptions to_90_percent{.final_sparsity = 0.9, .begin = 2, .end = 12, .every = 5};

TEST(GradualPruner, FollowsTheCubicSchedule) {
  auto model = two_layers();
  torch::optim::SGD sgd(model->parameters(), 0.01);
  GradualPruner pruner(*model, ProcessGroup::self(), to_90_percent);
  std::vector<double> measured;
  for (int step = 1; step <= 15; ++step) {
    pruner.step(sgd);
    measured.push_back(pruner.masks().sparsity());
  }
  const double middle = 0.9 - 0.9 * std::pow(0.5, 3);
  EXPECT_EQ(measured[0], 0);
  EXPECT_EQ(measured[1], 0);  // The initial sparsity.
  EXPECT_NEAR(measured[6], middle, 1e-3);
  EXPECT_NEAR(measured[10], middle, 1e-3);
  EXPECT_NEAR(measured[11], 0.9, 1e-3);
  EXPECT_NEAR(measured[14], 0.9, 1e-3);
  EXPECT_NEAR(pruner.scheduled_sparsity(), 0.9, 1e-12);
}

// Ranks have different weights and inputs. Returns the digest of each rank's masks.
std::vector<std::string> trained(bool resumed) {
  std::vector<std::string> digests(2);
  run_in_process(2, [&](ProcessGroup& world) {
    auto model = two_layers();
    {
      const torch::NoGradGuard no_grad;
      for (const at::Tensor& parameter : model->parameters())
        parameter.copy_(weights_of_rank(world.rank(), parameter));
    }
    Adam adam(model->parameters(), 0.01);
    auto pruner = std::make_unique<GradualPruner>(*model, world, to_90_percent);
    for (int step = 1; step <= 13; ++step) {
      adam.zero_grad();
      const at::Tensor inputs = torch::linspace(world.rank(), step, 40).view({2, 20});
      model->forward(inputs).square().mean().backward();
      adam.step();
      pruner->step(adam);
      if (!resumed || step != 8) continue;
      auto next = std::make_unique<GradualPruner>(*model, world, to_90_percent);
      next->wanted(pruner->state_dict());
      next->load_state_dict(pruner->state_dict());
      pruner = std::move(next);
    }
    digests[static_cast<std::size_t>(world.rank())] =
        sha256({pruner->masks().mask("0.weight"), pruner->masks().mask("1.weight")});
  });
  return digests;
}

TEST(GradualPruner, IsEqualOnAllRanksAndAfterAResumption) {
  const std::vector<std::string> plain = trained(false);
  EXPECT_EQ(plain[0], plain[1]);
  EXPECT_EQ(trained(true), plain);
}

TEST(GradualPruner, RefusesImpossibleSchedules) {
  auto model = two_layers();
  const auto fault = [&](const GradualPrunerOptions& options) {
    return fault_of([&] { GradualPruner(*model, ProcessGroup::self(), options); });
  };
  EXPECT_EQ(fault({.final_sparsity = 1.5, .end = 9}), Fault::misuse);
  EXPECT_EQ(fault({.begin = 9, .end = 9}), Fault::misuse);
  EXPECT_EQ(fault({.end = 9, .every = 0}), Fault::misuse);
  EXPECT_EQ(fault({.end = 9, .parameters = {"2.*"}}), Fault::misuse);
}

}  // namespace
}  // namespace lockstep::prune::pruning_masks_test
