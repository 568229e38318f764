// Tests of Adam, AdamW and SGD.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/optimizers.h"

#include <gtest/gtest.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tests/fault_of.h"
#include "tests/rigs/stepped_weights.h"

namespace lockstep::optim::optimizers_test {
namespace {

using test::copies;
using test::parameters;
using test::train;
using test::Weights;

struct AdamCase {
  using Ours = Adam;
  using Theirs = torch::optim::Adam;
  using Options = torch::optim::AdamOptions;
  static std::vector<Options> options() {
    return {Options(1e-2), Options(1e-3).weight_decay(0.1), Options(1e-2).amsgrad(true).eps(1e-6),
            Options(1e-2).betas({0.8, 0.95})};
  }
};

struct AdamWCase {
  using Ours = AdamW;
  using Theirs = torch::optim::AdamW;
  using Options = torch::optim::AdamWOptions;
  static std::vector<Options> options() {
    return {Options(1e-2), Options(1e-3).weight_decay(0.1), Options(1e-2).amsgrad(true).eps(1e-6),
            Options(1e-2).betas({0.8, 0.95}).weight_decay(0)};
  }
};

struct SgdCase {
  using Ours = SGD;
  using Theirs = torch::optim::SGD;
  using Options = torch::optim::SGDOptions;
  static std::vector<Options> options() {
    return {Options(1e-2).momentum(0.9), Options(1e-2), Options(1e-2).weight_decay(0.1),
            Options(1e-2).momentum(0.9).dampening(0.3).weight_decay(0.01),
            Options(1e-3).momentum(0.9).nesterov(true).weight_decay(0.1)};
  }
};

void expect_near(const Weights& a, const Weights& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_LE((a[i] - b[i]).abs().max().template item<double>(), 1e-6) << "parameter " << i;
}

template <class Case>
class FusedOptimizer : public ::testing::Test {
 protected:
  static typename Case::Options options() { return Case::options().front(); }
};

using Cases = ::testing::Types<AdamCase, AdamWCase, SgdCase>;
TYPED_TEST_SUITE(FusedOptimizer, Cases, );

TYPED_TEST(FusedOptimizer, StepsAsLibTorchsOwnDoes) {
  for (const auto& options : TypeParam::options()) {
    const Weights ours = parameters();
    const Weights theirs = parameters();
    typename TypeParam::Ours fused(ours, options);
    typename TypeParam::Theirs plain(theirs, options);
    train(fused, ours, 20);
    train(plain, theirs, 20);
    expect_near(ours, theirs);
    EXPECT_FALSE(torch::allclose(ours[0], parameters()[0])) << "nothing was stepped";
  }
}

TYPED_TEST(FusedOptimizer, ParametersMayBeAtDifferentSteps) {
  const Weights ours = parameters();
  const Weights theirs = parameters();
  typename TypeParam::Ours fused(ours, this->options());
  typename TypeParam::Theirs plain(theirs, this->options());
  for (std::size_t count = 1; count <= ours.size(); ++count) {
    train(fused, {ours.begin(), ours.begin() + count}, 2);
    train(plain, {theirs.begin(), theirs.begin() + count}, 2);
  }
  expect_near(ours, theirs);
}

TYPED_TEST(FusedOptimizer, GroupsHaveTheirOwnOptions) {
  const auto groups = [&](const Weights& weights) {
    std::vector<torch::optim::OptimizerParamGroup> result;
    result.emplace_back(Weights{weights[0], weights[1]});
    auto slower = this->options();
    slower.lr(1e-4);
    result.emplace_back(Weights{weights[2]}, std::make_unique<typename TypeParam::Options>(slower));
    return result;
  };
  const Weights ours = parameters();
  const Weights theirs = parameters();
  typename TypeParam::Ours fused(groups(ours), this->options());
  typename TypeParam::Theirs plain(groups(theirs), this->options());
  train(fused, ours, 5);
  train(plain, theirs, 5);
  expect_near(ours, theirs);
}

TYPED_TEST(FusedOptimizer, RefusesAParameterInTwoGroups) {
  const Weights weights = parameters();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(weights);
  groups.emplace_back(Weights{weights[0]});
  typename TypeParam::Ours fused(groups, this->options());
  EXPECT_EQ(test::fault_of([&] { train(fused, weights, 1); }), Fault::misuse);
  EXPECT_TRUE(torch::equal(weights[0], parameters()[0]));
}

template <class From, class To, class Options>
void expect_goes_on_from_archive(const Options& options) {
  const Weights weights = parameters();
  From first(weights, options);
  train(first, weights, 3);
  std::stringstream archive;
  torch::save(first, archive);

  const Weights loaded_weights = copies(weights);
  To second(loaded_weights, options);
  torch::load(second, archive);
  train(first, weights, 3);
  train(second, loaded_weights, 3);
  expect_near(weights, loaded_weights);
}

TYPED_TEST(FusedOptimizer, ItsArchivesAreLibTorchsOwn) {
  using Ours = typename TypeParam::Ours;
  using Theirs = typename TypeParam::Theirs;
  for (const auto& options : TypeParam::options()) {
    expect_goes_on_from_archive<Ours, Theirs>(options);
    expect_goes_on_from_archive<Theirs, Ours>(options);
  }
}

TYPED_TEST(FusedOptimizer, ParametersWithoutAGradientAreLeftAlone) {
  const Weights weights = parameters();
  const at::Tensor before = weights[1].detach().clone();
  typename TypeParam::Ours optimizer(weights, this->options());
  train(optimizer, {weights[0], weights[2]}, 2);
  EXPECT_TRUE(torch::equal(weights[1], before));
  EXPECT_EQ(optimizer.state().size(), 2U);
}

TYPED_TEST(FusedOptimizer, RunsTheClosureAndReturnsItsLoss) {
  test::expect_runs_the_closure_and_returns_its_loss<typename TypeParam::Ours>(this->options());
}

// Uses three layouts of weights, gradients and state. Results must equal those of contiguous
// tensors.
TYPED_TEST(FusedOptimizer, StepsWhateverTheLayoutOfGradientsAndState) {
  const auto channels_last = [](const at::Tensor& tensor) {
    return tensor.contiguous(at::MemoryFormat::ChannelsLast);
  };
  torch::manual_seed(5);
  const at::Tensor start = torch::randn({4, 3, 2, 2});
  const at::Tensor gradient = torch::randn({4, 3, 2, 2});
  const Weights weights{start.clone(), start.clone(), channels_last(start)};
  typename TypeParam::Ours optimizer(weights, this->options());
  const auto step = [&] {
    weights[0].mutable_grad() = gradient.clone();
    weights[1].mutable_grad() = channels_last(gradient);
    weights[2].mutable_grad() = gradient.clone();
    optimizer.step();
  };
  step();
  weights[0].set_data(channels_last(weights[0]));  // Its state, if any, is contiguous.
  step();
  EXPECT_FALSE(torch::equal(weights[0], start));
  EXPECT_TRUE(torch::equal(weights[0], weights[1]));
  EXPECT_TRUE(torch::equal(weights[1], weights[2]));
}

TYPED_TEST(FusedOptimizer, TakesEmptyParametersAndNone) {
  const Weights weights{torch::zeros({0, 3}), torch::zeros({})};
  typename TypeParam::Ours optimizer(weights, this->options());
  optimizer.step();  // No parameter has a gradient yet.
  for (const at::Tensor& weight : weights) weight.mutable_grad() = torch::ones_like(weight);
  optimizer.step();
  EXPECT_NE(weights[1].template item<float>(), 0);
}

template <class Optimizer, class Options>
void expect_refused(const at::Tensor& bad, const at::Tensor& gradient, const Options& options,
                    Fault fault, const std::string& message) {
  const at::Tensor good = torch::ones({2});
  good.mutable_grad() = torch::ones({2});
  bad.mutable_grad() = gradient;
  Optimizer optimizer(Weights{good, bad}, options);
  std::string text;
  EXPECT_EQ(test::fault_of([&] { optimizer.step(); }, &text), fault);
  EXPECT_NE(text.find(message), std::string::npos) << text;
  EXPECT_TRUE(torch::equal(good, torch::ones({2})) && optimizer.state().empty())
      << "a refused step changed something";
}

TYPED_TEST(FusedOptimizer, RefusesWhatItsKernelsCannotStepAndChangesNothing) {
  const auto refused = expect_refused<typename TypeParam::Ours, typename TypeParam::Options>;
  const at::Tensor three = torch::ones({3});
  refused(three.clone(), three.to_sparse(), this->options(), Fault::unsupported, "sparse");
  refused(three.to(at::kComplexFloat), three.to(at::kComplexFloat), this->options(),
          Fault::unsupported, "floating-point");
  refused(torch::ones({3, 2}).select(1, 0), three, this->options(), Fault::unsupported, "gaps");
  const at::Tensor other_shape = torch::ones({3});
  other_shape.mutable_grad() = three.clone();
  other_shape.set_data(torch::ones({5}));
  refused(other_shape, other_shape.grad(), this->options(), Fault::misuse, "shape");
}

TYPED_TEST(FusedOptimizer, RefusesTheStateOfAnotherModel) {
  const Weights small{torch::ones({3})};
  small[0].mutable_grad() = torch::ones({3});
  typename TypeParam::Ours saved(small, this->options());
  saved.step();
  std::stringstream archive;
  torch::save(saved, archive);

  const Weights large{torch::ones({5})};
  large[0].mutable_grad() = torch::ones({5});
  typename TypeParam::Ours loaded(large, this->options());
  torch::load(loaded, archive);
  EXPECT_EQ(test::fault_of([&] { loaded.step(); }), Fault::misuse);
}

using SgdOptions = torch::optim::SGDOptions;

void step_with_gradient_of_ones(SGD& sgd, const at::Tensor& weight) {
  weight.mutable_grad() = torch::ones_like(weight);
  sgd.step();
}

const at::Tensor& momentum_of(SGD& sgd, const at::Tensor& weight) {
  return static_cast<torch::optim::SGDParamState&>(*sgd.state().at(weight.unsafeGetTensorImpl()))
      .momentum_buffer();
}

TEST(Sgd, TheFirstStepTakesTheGradientAsItsMomentumWhateverTheDampening) {
  const at::Tensor weight = torch::zeros({3});
  SGD sgd({weight}, SgdOptions(1).momentum(0.5).dampening(0.75));
  step_with_gradient_of_ones(sgd, weight);
  EXPECT_TRUE(torch::equal(momentum_of(sgd, weight), torch::full({3}, 1.0)));
  step_with_gradient_of_ones(sgd, weight);
  EXPECT_TRUE(torch::equal(momentum_of(sgd, weight), torch::full({3}, 0.75)));
  EXPECT_TRUE(torch::equal(weight, torch::full({3}, -1.75)));
}

TEST(Sgd, AWeightThatIsGivenTwiceIsSteppedOnce) {
  const at::Tensor weight = torch::zeros({3});
  SGD sgd({weight, weight}, SgdOptions(1));
  step_with_gradient_of_ones(sgd, weight);
  EXPECT_TRUE(torch::equal(weight, torch::full({3}, -1.0)));
}

TEST(Sgd, WithoutMomentumThereIsNoStateAndItMayBeTurnedOnLater) {
  const at::Tensor weight = torch::zeros({3});
  SGD sgd({weight}, SgdOptions(1));
  step_with_gradient_of_ones(sgd, weight);
  EXPECT_TRUE(sgd.state().empty());
  static_cast<SgdOptions&>(sgd.param_groups().front().options()).momentum(0.5);
  step_with_gradient_of_ones(sgd, weight);
  EXPECT_TRUE(torch::equal(momentum_of(sgd, weight), torch::ones({3})));
  step_with_gradient_of_ones(sgd, weight);
  EXPECT_TRUE(torch::equal(weight, torch::full({3}, -3.5)));
}

TEST(Sgd, RefusesHalfPrecisionWhichItsKernelWouldLeaveUnstepped) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const at::Tensor weight = torch::zeros({100}, dtype);
    SGD sgd({weight}, SgdOptions(1));
    EXPECT_EQ(test::fault_of([&] { step_with_gradient_of_ones(sgd, weight); }), Fault::unsupported);
  }
}

}  // namespace
}  // namespace lockstep::optim::optimizers_test
