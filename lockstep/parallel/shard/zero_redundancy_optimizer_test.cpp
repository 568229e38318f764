// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"

#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/comm/in_process.h"
#include "lockstep/optim/layerwise.h"
#include "lockstep/optim/optimizers.h"
#include "tests/fault_of.h"

namespace lockstep::parallel::zero_redundancy_optimizer_test {
namespace {

using test::fault_of;
using torch::optim::AdamOptions;
using Weights = std::vector<at::Tensor>;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;

template <class Optimizer_, class Options_>
struct Case {
  using Optimizer = Optimizer_;
  using Options = Options_;
};

template <class C>
typename C::Options options() {
  typename C::Options result(1e-2);
  if constexpr (requires { result.momentum(0.9); }) result.momentum(0.9);
  if constexpr (requires { result.amsgrad(true); }) result.amsgrad(true);
  return result.weight_decay(0.1);
}

// Their elements do not divide into equal parts.
Weights parameters() {
  torch::manual_seed(3);
  return {torch::randn({7, 5}).requires_grad_(), torch::randn({33}).requires_grad_(),
          torch::randn({2, 3, 4}, at::kDouble).requires_grad_(),
          torch::randn({5, 6}).t().requires_grad_(), torch::randn({}).requires_grad_()};
}

Weights copies(const Weights& weights) {
  Weights result;
  for (const auto& weight : weights) result.push_back(weight.detach().clone().requires_grad_());
  return result;
}

// Gradients depend on the weights, so that a difference would grow.
void set_gradients(const Weights& weights, int step) {
  for (std::size_t i = 0; i + 1 < weights.size(); ++i)
    if (i != 1 || step % 3 == 0) (weights[i].sin() * (step + 1)).sum().backward();
}

template <class Optimizer>
void train(Optimizer& optimizer, const Weights& weights, int first, int last) {
  for (int step = first; step < last; ++step) {
    optimizer.zero_grad();
    set_gradients(weights, step);
    optimizer.step();
  }
}

void expect_equal(const Weights& a, const Weights& b) {
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
}

template <class C>
Groups groups_of(const Weights& weights) {
  auto slower = options<C>();
  slower.lr(1e-3);
  Groups groups;
  groups.emplace_back(Weights(weights.begin(), weights.begin() + 2));
  groups.emplace_back(Weights(weights.begin() + 2, weights.end()),
                      std::make_unique<typename C::Options>(slower));
  return groups;
}

template <class C>
class ZeroRedundancy : public ::testing::Test {};

using Cases = ::testing::Types<
    Case<Adam, AdamOptions>, Case<torch::optim::Adam, AdamOptions>,
    Case<AdamW, torch::optim::AdamWOptions>, Case<torch::optim::AdamW, torch::optim::AdamWOptions>,
    Case<SGD, torch::optim::SGDOptions>, Case<torch::optim::SGD, torch::optim::SGDOptions>,
    Case<torch::optim::Adagrad, torch::optim::AdagradOptions>,
    Case<torch::optim::RMSprop, torch::optim::RMSpropOptions>, Case<LARS, LARSOptions>,
    Case<LAMB, LAMBOptions>>;
TYPED_TEST_SUITE(ZeroRedundancy, Cases, );

TYPED_TEST(ZeroRedundancy, StepsAsThePlainOptimizerBitForBit) {
  const Weights theirs = parameters();
  typename TypeParam::Optimizer plain(groups_of<TypeParam>(theirs), options<TypeParam>());
  torch::optim::StepLR slow_down(plain, 10, 0.5);
  for (int step = 0; step < 50; ++step) {
    train(plain, theirs, step, step + 1);
    slow_down.step();
  }
  ASSERT_FALSE(torch::equal(theirs[0], parameters()[0])) << "nothing was stepped";
  const Weights start = parameters();
  for (const int ranks : {1, 2, 3, 4, 7})  // 7 ranks are more than there are parameters.
    run_in_process(ranks, [&](ProcessGroup& world) {
      const Weights ours = copies(start);
      ZeroRedundancyOptimizer<typename TypeParam::Optimizer> sharded(groups_of<TypeParam>(ours),
                                                                     world, options<TypeParam>());
      torch::optim::StepLR scheduler(sharded, 10, 0.5);
      for (int step = 0; step < 50; ++step) {
        train(sharded, ours, step, step + 1);
        scheduler.step();
      }
      expect_equal(ours, theirs);
    });
}

template <class C>
std::string saved_at(int ranks, int steps) {
  std::string text;
  const Weights start = parameters();
  run_in_process(ranks, [&](ProcessGroup& world) {
    const Weights weights = copies(start);
    ZeroRedundancyOptimizer<typename C::Optimizer> sharded(groups_of<C>(weights), world,
                                                           options<C>());
    train(sharded, weights, 0, steps);
    const int to = world.size() - 1;
    sharded.consolidate_state_dict(to);
    if (world.rank() != to) return;
    std::ostringstream archive;
    torch::save(sharded, archive);
    text = archive.str();
  });
  return text;
}

TYPED_TEST(ZeroRedundancy, ItsArchivesAreThePlainOptimizersAtAnyWorldSize) {
  using Plain = typename TypeParam::Optimizer;
  const Weights start = parameters();
  const Weights theirs = copies(start);
  Plain plain(groups_of<TypeParam>(theirs), options<TypeParam>());
  train(plain, theirs, 0, 5);
  const Weights at_five = copies(theirs);
  train(plain, theirs, 5, 12);

  for (const int ranks : {1, 2, 7}) {
    const std::string archive = saved_at<TypeParam>(ranks, 5);
    const Weights loaded = copies(at_five);
    Plain goes_on(groups_of<TypeParam>(loaded), options<TypeParam>());
    std::istringstream in(archive);
    torch::load(goes_on, in);
    train(goes_on, loaded, 5, 12);
    expect_equal(loaded, theirs);

    run_in_process(3, [&](ProcessGroup& world) {
      const Weights ours = copies(at_five);
      ZeroRedundancyOptimizer<Plain> sharded(groups_of<TypeParam>(ours), world,
                                             options<TypeParam>());
      std::istringstream stream(archive);
      torch::load(sharded, stream);
      train(sharded, ours, 5, 12);
      expect_equal(ours, theirs);
    });
  }
}

TEST(ZeroRedundancyOptimizer, PartitionIsPyTorchs) {
  const Weights mlp{torch::zeros({512, 784}), torch::zeros({512}),     torch::zeros({512, 512}),
                    torch::zeros({512}),      torch::zeros({10, 512}), torch::zeros({10})};
  EXPECT_EQ(partition_parameters({mlp}, 2),
            (std::vector<std::vector<std::size_t>>{{0}, {2, 4, 1, 3, 5}}));
  const Groups groups{Weights{mlp[1], mlp[4]}, Weights{mlp[3], mlp[0]}};  // Totals carry over.
  EXPECT_EQ(partition_parameters(groups, 3),
            (std::vector<std::vector<std::size_t>>{{1}, {0, 2}, {3}}));
}

TEST(ZeroRedundancyOptimizer, EachRankKeepsTheStateOfItsOwnParametersAlone) {
  const Weights start = parameters();
  run_in_process(2, [&](ProcessGroup& world) {
    const Weights weights = copies(start);
    ZeroRedundancyOptimizer<Adam> adam(weights, world, AdamOptions(1e-3));
    train(adam, weights, 0, 1);
    std::size_t kept = 0;
    for (std::size_t i = 0; i + 1 < weights.size(); ++i)
      if (adam.owner(weights[i]) == world.rank()) ++kept;
    EXPECT_EQ(adam.local().state().size(), kept);
    EXPECT_LT(kept, weights.size() - 1);
    EXPECT_EQ(fault_of([&] { adam.owner(torch::zeros({3})); }), Fault::misuse);
  });
}

TEST(ZeroRedundancyOptimizer, RunsTheClosureAndReturnsItsLoss) {
  run_in_process(2, [](ProcessGroup& world) {
    const Weights weights{torch::ones({3}).requires_grad_()};
    ZeroRedundancyOptimizer<Adam> adam(weights, world, AdamOptions(1e-3));
    const at::NoGradGuard no_grad;
    const torch::Tensor loss = adam.step([&] {
      torch::Tensor sum = weights[0].sum();
      sum.backward();
      return sum;
    });
    EXPECT_EQ(loss.item<float>(), 3);
    EXPECT_LT(weights[0][0].item<float>(), 1);
  });
}

TEST(ZeroRedundancyOptimizer, IsSavedOnlyWhereAndWhileItIsConsolidated) {
  run_in_process(2, [](ProcessGroup& world) {
    const Weights weights{torch::ones({3}).requires_grad_(), torch::ones({4}).requires_grad_()};
    ZeroRedundancyOptimizer<Adam> adam(weights, world, AdamOptions(1e-3));
    const auto save = [&] {
      std::ostringstream archive;
      torch::save(adam, archive);
    };
    std::string text;
    EXPECT_EQ(fault_of(save, &text), Fault::misuse);
    EXPECT_NE(text.find("consolidate_state_dict"), std::string::npos) << text;
    EXPECT_EQ(fault_of([&] { adam.consolidate_state_dict(2); }), Fault::misuse);
    adam.consolidate_state_dict(1);
    if (world.rank() == 1)
      save();
    else
      EXPECT_EQ(fault_of(save), Fault::misuse);
    adam.step();
    EXPECT_EQ(fault_of(save), Fault::misuse);
  });
}

TEST(ZeroRedundancyOptimizer, RefusesOtherParametersOnOtherRanks) {
  std::string text;
  run_in_process(3, [&](ProcessGroup& world) {
    const Weights weights{torch::ones({3}), torch::ones({world.rank() == 2 ? 5 : 4})};
    std::string message;
    EXPECT_EQ(fault_of([&] { ZeroRedundancyOptimizer<Adam>(weights, world, AdamOptions(1e-3)); },
                       &message),
              Fault::mismatch);
    EXPECT_NE(message.find("between rank 0 and rank 2, from parameter 1 on"), std::string::npos)
        << message;
  });
}

TEST(ZeroRedundancyOptimizer, RefusesWhatItCannotShard) {
  run_in_process(1, [](ProcessGroup& world) {
    const at::Tensor weight = torch::ones({3});
    const auto made = [&](const Weights& weights) {
      return fault_of([&] { ZeroRedundancyOptimizer<Adam>(weights, world, AdamOptions(1e-3)); });
    };
    EXPECT_EQ(made({}), Fault::misuse);
    EXPECT_EQ(ZeroRedundancyOptimizer<Adam>(Weights{weight, weight}, world, AdamOptions(1e-3))
                  .shards()
                  .size(),
              1U);
    EXPECT_EQ(fault_of([&] {
                ZeroRedundancyOptimizer<torch::optim::LBFGS>(Weights{weight}, world,
                                                             torch::optim::LBFGSOptions(1));
              }),
              Fault::unsupported);
    ZeroRedundancyOptimizer<Adam> adam(Weights{weight}, world, AdamOptions(1e-3));
    adam.add_param_group(Weights{torch::ones({4})});
    EXPECT_EQ(fault_of([&] { adam.step(); }), Fault::misuse);
  });
}

// Rank 1 owns a parameter that its kernel refuses. The group is aborted.
TEST(ZeroRedundancyOptimizer, AStepThatFailsOnOneRankEndsTheOthersWithItsReason) {
  const auto run = [](ProcessGroup& world) {
    const Weights weights{torch::ones({5}), torch::ones({4})};
    ZeroRedundancyOptimizer<Adam> adam(weights, world, AdamOptions(1e-3));
    weights[1].mutable_grad() = torch::ones({4}).to_sparse();
    std::string text;
    EXPECT_EQ(fault_of([&] { adam.step(); }, &text),
              world.rank() == 1 ? Fault::unsupported : Fault::aborted);
    EXPECT_NE(text.find("sparse"), std::string::npos) << text;
  };
  EXPECT_EQ(fault_of([&] { run_in_process(2, run); }), Fault::aborted);
}

class SignDescent : public torch::optim::Optimizer {
 public:
  SignDescent(const Groups& groups, const torch::optim::SGDOptions& defaults)
      : Optimizer(groups, std::make_unique<torch::optim::SGDOptions>(defaults)) {}

  torch::Tensor step(LossClosure = nullptr) override {
    const at::NoGradGuard no_grad;
    for (auto& group : param_groups_)
      for (auto& weight : group.params())
        if (weight.grad().defined()) weight.sub_(weight.grad().sign(), group.options().get_lr());
    return {};
  }
};

TEST(ZeroRedundancyOptimizer, StepsWithAnOptimizerOfOnesOwnButCannotConsolidateIt) {
  run_in_process(2, [](ProcessGroup& world) {
    const Weights weights{torch::ones({3}), torch::ones({4})};
    ZeroRedundancyOptimizer<SignDescent> sharded(weights, world, torch::optim::SGDOptions(0.5));
    for (const at::Tensor& weight : weights) weight.mutable_grad() = torch::ones_like(weight);
    sharded.step();
    for (const at::Tensor& weight : weights)
      EXPECT_TRUE(torch::equal(weight, torch::full_like(weight, 0.5)));
    EXPECT_EQ(fault_of([&] { sharded.consolidate_state_dict(); }), Fault::unsupported);
  });
}

}  // namespace
}  // namespace lockstep::parallel::zero_redundancy_optimizer_test
