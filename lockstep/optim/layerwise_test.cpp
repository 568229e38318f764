// Tests of LARS and LAMB. tests/python/optimizers_test.py compares their steps with a plain
// computation.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/layerwise.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/optim/optimizer_stateful.h"
#include "tests/fault_of.h"
#include "tests/rigs/stepped_weights.h"

namespace lockstep::optim::layerwise_test {
namespace {

using test::copies;
using test::fault_of;
using test::parameters;
using test::train;
using test::Weights;
using torch::optim::OptimizerParamGroup;

struct LarsCase {
  using Optimizer = LARS;
  using Options = LARSOptions;
  static Options options() { return Options(0.5).weight_decay(0.01).nesterov(true); }
};

struct LambCase {
  using Optimizer = LAMB;
  using Options = LAMBOptions;
  static Options options() { return Options(0.01).weight_decay(0.1); }
};

void expect_equal(const Weights& a, const Weights& b) {
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
}

template <class Case>
class Layerwise : public ::testing::Test {
 protected:
  static typename Case::Options options() { return Case::options(); }
};

using Cases = ::testing::Types<LarsCase, LambCase>;
TYPED_TEST_SUITE(Layerwise, Cases, );

TYPED_TEST(Layerwise, ParametersWithoutAGradientAreLeftAlone) {
  const Weights weights = parameters();
  const at::Tensor before = weights[1].detach().clone();
  typename TypeParam::Optimizer optimizer(weights, this->options());
  train(optimizer, {weights[0], weights[2]}, 2);
  EXPECT_TRUE(torch::equal(weights[1], before));
  EXPECT_FALSE(torch::equal(weights[0], parameters()[0]));
  EXPECT_EQ(optimizer.state().size(), 2U);
}

TYPED_TEST(Layerwise, GoesOnFromItsArchiveWithEachGroupsOptions) {
  const auto groups = [&](const Weights& weights) {
    auto others = this->options();
    others.weight_decay(0).adapt(false).lr(1e-3);
    std::vector<OptimizerParamGroup> result;
    result.emplace_back(Weights{weights[0]});
    result.emplace_back(Weights{weights[1], weights[2]},
                        std::make_unique<typename TypeParam::Options>(others));
    return result;
  };
  const Weights weights = parameters();
  typename TypeParam::Optimizer first(groups(weights), this->options());
  train(first, weights, 3);
  std::stringstream archive;
  torch::save(first, archive);

  const Weights loaded_weights = copies(weights);
  typename TypeParam::Optimizer second(groups(loaded_weights), this->options());
  second.param_groups()[1].options().set_lr(7);
  torch::load(second, archive);
  EXPECT_EQ(second.param_groups()[1].options().get_lr(), 1e-3);
  train(first, weights, 3);
  train(second, loaded_weights, 3);
  expect_equal(weights, loaded_weights);
}

NamedTensors named(const Weights& weights) {
  return {{"a", weights[0]}, {"b", weights[1]}, {"c", weights[2]}};
}

TYPED_TEST(Layerwise, GoesOnFromItsNamedState) {
  const Weights weights = parameters();
  typename TypeParam::Optimizer first(weights, this->options());
  train(first, weights, 3);
  const Weights loaded_weights = copies(weights);
  typename TypeParam::Optimizer second(loaded_weights, typename TypeParam::Options(9));
  const StateDict saved = state_of(first, named(weights))->state_dict();
  const auto state = state_of(second, named(loaded_weights));
  state->wanted(saved);
  StateDict taken = saved;
  for (auto& [name, tensor] : taken.tensors) tensor.data = tensor.data.clone();
  state->load_state_dict(std::move(taken));
  train(first, weights, 3);
  train(second, loaded_weights, 3);
  expect_equal(weights, loaded_weights);

  torch::optim::Adam adam(weights, torch::optim::AdamOptions());
  std::string text;
  EXPECT_EQ(fault_of([&] { state_of(adam, named(weights))->wanted(saved); }, &text), Fault::misuse);
  EXPECT_NE(text.find("this optimizer is Adam"), std::string::npos) << text;
}

TYPED_TEST(Layerwise, RunsTheClosureAndReturnsItsLoss) {
  test::expect_runs_the_closure_and_returns_its_loss<typename TypeParam::Optimizer>(
      this->options());
}

TYPED_TEST(Layerwise, StepsWhateverTheLayoutOfGradientsAndState) {
  const auto channels_last = [](const at::Tensor& tensor) {
    return tensor.contiguous(at::MemoryFormat::ChannelsLast);
  };
  torch::manual_seed(5);
  const at::Tensor start = torch::randn({4, 3, 2, 2}, at::kDouble);
  const at::Tensor gradient = torch::randn({4, 3, 2, 2}, at::kDouble);
  const Weights weights{start.clone(), start.clone(), channels_last(start)};
  typename TypeParam::Optimizer optimizer(weights, this->options());
  const auto step = [&] {
    weights[0].mutable_grad() = gradient.clone();
    weights[1].mutable_grad() = channels_last(gradient);
    weights[2].mutable_grad() = gradient.clone();
    optimizer.step();
  };
  step();
  weights[0].set_data(channels_last(weights[0]));  // Its state is contiguous.
  step();
  EXPECT_FALSE(torch::allclose(weights[0], start));
  for (const at::Tensor& weight : weights)
    EXPECT_TRUE(torch::allclose(weight, weights[0], 1e-13, 1e-15));
}

TYPED_TEST(Layerwise, HasTheSameBitsForEveryNumberOfThreads) {
  torch::manual_seed(7);
  const at::Tensor start = torch::randn({301, 333});
  const at::Tensor gradient = torch::randn({301, 333});
  const auto stepped = [&](int threads) {
    torch::set_num_threads(threads);
    const at::Tensor weight = start.clone();
    typename TypeParam::Optimizer optimizer(Weights{weight}, this->options());
    for (int step = 0; step < 3; ++step) {
      weight.mutable_grad() = gradient.clone();
      optimizer.step();
    }
    return weight;
  };
  const int before = torch::get_num_threads();
  const at::Tensor serial = stepped(1);
  EXPECT_TRUE(torch::equal(serial, stepped(3)));
  EXPECT_FALSE(torch::equal(serial, start));
  torch::set_num_threads(before);
}

// Two optimizers each step one half of a weight and exchange their sums.
TYPED_TEST(Layerwise, StepsPartsOfParametersAsTheWhole) {
  torch::manual_seed(11);
  const at::Tensor whole = torch::randn({1000}, at::kDouble);
  const at::Tensor start = whole.clone();
  const at::Tensor parts = whole.clone();
  const at::Tensor gradient = torch::randn({1000}, at::kDouble);
  whole.mutable_grad() = gradient;
  const Weights halves{parts.slice(0, 0, 300), parts.slice(0, 300, 1000)};
  halves[0].mutable_grad() = gradient.slice(0, 0, 300);
  halves[1].mutable_grad() = gradient.slice(0, 300, 1000);

  typename TypeParam::Optimizer plain(Weights{whole}, this->options());
  typename TypeParam::Optimizer joined(halves, this->options());
  joined.set_add_parts([](std::vector<SquareSums>& sums) {
    const SquareSums both{sums.at(0).weights + sums.at(1).weights, sums[0].update + sums[1].update};
    sums.assign(2, both);
  });
  for (int step = 0; step < 3; ++step) {
    plain.step();
    joined.step();
  }
  EXPECT_TRUE(torch::allclose(parts, whole, 1e-13, 1e-15));
  EXPECT_FALSE(torch::allclose(parts, start, 1e-13, 1e-15));
}

TYPED_TEST(Layerwise, ANormOfZeroLeavesTheStepUnscaled) {
  const Weights weights{torch::zeros({3}), torch::ones({3})};
  typename TypeParam::Optimizer optimizer(weights, this->options());
  weights[0].mutable_grad() = torch::ones({3});
  weights[1].mutable_grad() = torch::zeros({3});
  optimizer.step();
  EXPECT_TRUE(torch::isfinite(weights[0]).all().template item<bool>());
  EXPECT_NE(weights[0][0].template item<float>(), 0);
  EXPECT_TRUE(torch::isfinite(weights[1]).all().template item<bool>());
}

TYPED_TEST(Layerwise, TakesEmptyParametersAndNone) {
  const Weights weights{torch::zeros({0, 3}), torch::ones({})};
  typename TypeParam::Optimizer optimizer(weights, this->options());
  optimizer.step();  // No parameter has a gradient yet.
  for (const at::Tensor& weight : weights) weight.mutable_grad() = torch::ones_like(weight);
  optimizer.step();
  EXPECT_NE(weights[1].template item<float>(), 1);
}

TYPED_TEST(Layerwise, RefusesWhatItCannotStepAndChangesNothing) {
  for (const auto& bad : {torch::ones({3}, at::kHalf), torch::ones({3, 2}).select(1, 0)}) {
    const at::Tensor good = torch::ones({2});
    good.mutable_grad() = torch::ones({2});
    bad.mutable_grad() = torch::ones_like(bad);
    typename TypeParam::Optimizer optimizer(Weights{good, bad}, this->options());
    EXPECT_EQ(fault_of([&] { optimizer.step(); }), Fault::unsupported);
    EXPECT_TRUE(torch::equal(good, torch::ones({2})) && optimizer.state().empty());
  }
}

TYPED_TEST(Layerwise, RefusesTheStateOfAnotherModel) {
  const at::Tensor weight = torch::ones({3});
  weight.mutable_grad() = torch::ones({3});
  typename TypeParam::Optimizer optimizer(Weights{weight}, this->options());
  optimizer.step();
  weight.mutable_grad().reset();
  weight.set_data(torch::ones({5}));
  weight.mutable_grad() = torch::ones({5});
  EXPECT_EQ(fault_of([&] { optimizer.step(); }), Fault::misuse);
}

TYPED_TEST(Layerwise, RefusesGroupsOfAnotherOptimizer) {
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(parameters(), std::make_unique<torch::optim::AdamOptions>());
  std::string text;
  EXPECT_EQ(fault_of([&] { typename TypeParam::Optimizer(groups, this->options()); }, &text),
            Fault::misuse);
  EXPECT_NE(text.find("AdamOptions"), std::string::npos) << text;
}

TEST(LayerwiseOptions, RefusesOptionsOutOfTheirRanges) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  const auto lars = [](const LARSOptions& options) {
    return fault_of([&] { LARS(parameters(), options); });
  };
  EXPECT_EQ(lars(LARSOptions(-1)), Fault::misuse);
  EXPECT_EQ(lars(LARSOptions(1).momentum(-0.1)), Fault::misuse);
  EXPECT_EQ(lars(LARSOptions(1).weight_decay(nan)), Fault::misuse);
  EXPECT_EQ(lars(LARSOptions(1).trust_coefficient(0)), Fault::misuse);
  EXPECT_EQ(lars(LARSOptions(1).trust_coefficient(nan)), Fault::misuse);
  EXPECT_EQ(lars(LARSOptions(1).eps(-1)), Fault::misuse);
  EXPECT_EQ(lars(LARSOptions(1).momentum(0).nesterov(true)), Fault::misuse);
  const auto lamb = [](const LAMBOptions& options) {
    return fault_of([&] { LAMB(parameters(), options); });
  };
  EXPECT_EQ(lamb(LAMBOptions(nan)), Fault::misuse);
  EXPECT_EQ(lamb(LAMBOptions().betas({0.9, 1})), Fault::misuse);
  EXPECT_EQ(lamb(LAMBOptions().betas({-0.1, 0.9})), Fault::misuse);
  EXPECT_EQ(lamb(LAMBOptions().eps(-1)), Fault::misuse);
  EXPECT_EQ(lamb(LAMBOptions().weight_decay(-1)), Fault::misuse);
}

TEST(DecayedAndNot, BiasesAndNormsAreNeitherDecayedNorScaled) {
  const torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4),
                                  torch::nn::Linear(4, 2));
  const auto options = LAMBOptions(0.1).weight_decay(0.01);
  const auto groups = decayed_and_not(*net, options);
  ASSERT_EQ(groups.size(), 2U);
  const auto of = [&](int group) {
    return static_cast<const LAMBOptions&>(groups[static_cast<std::size_t>(group)].options());
  };
  EXPECT_EQ(groups[0].params().size(), 2U);
  EXPECT_EQ(groups[1].params().size(), 4U);
  EXPECT_EQ(of(0).weight_decay(), 0.01);
  EXPECT_TRUE(of(0).adapt());
  EXPECT_EQ(of(1).lr(), 0.1);
  EXPECT_EQ(of(1).weight_decay(), 0);
  EXPECT_FALSE(of(1).adapt());
  LAMB lamb(groups, options);
  EXPECT_EQ(lamb.param_groups().size(), 2U);
  EXPECT_FALSE(static_cast<const LAMBOptions&>(lamb.param_groups()[1].options()).adapt());
}

}  // namespace
}  // namespace lockstep::optim::layerwise_test
