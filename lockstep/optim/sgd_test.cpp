// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/sgd.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <vector>

#include "tests/fault_of.h"

namespace lockstep::sgd_test {
namespace {

using Options = torch::optim::SGDOptions;

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
  SGD sgd({weight}, Options(1).momentum(0.5).dampening(0.75));
  step_with_gradient_of_ones(sgd, weight);
  EXPECT_TRUE(torch::equal(momentum_of(sgd, weight), torch::full({3}, 1.0)));
  step_with_gradient_of_ones(sgd, weight);
  EXPECT_TRUE(torch::equal(momentum_of(sgd, weight), torch::full({3}, 0.75)));
  EXPECT_TRUE(torch::equal(weight, torch::full({3}, -1.75)));
}

TEST(Sgd, WithoutMomentumThereIsNoStateAndItMayBeTurnedOnLater) {
  const at::Tensor weight = torch::zeros({3});
  SGD sgd({weight}, Options(1));
  step_with_gradient_of_ones(sgd, weight);
  EXPECT_TRUE(sgd.state().empty());
  static_cast<Options&>(sgd.param_groups().front().options()).momentum(0.5);
  step_with_gradient_of_ones(sgd, weight);
  EXPECT_TRUE(torch::equal(momentum_of(sgd, weight), torch::ones({3})));
  step_with_gradient_of_ones(sgd, weight);
  EXPECT_TRUE(torch::equal(weight, torch::full({3}, -3.5)));
}

TEST(Sgd, RefusesHalfPrecisionWhichItsKernelWouldLeaveUnstepped) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const at::Tensor weight = torch::zeros({100}, dtype);
    SGD sgd({weight}, Options(1));
    EXPECT_EQ(test::fault_of([&] { step_with_gradient_of_ones(sgd, weight); }), Fault::unsupported);
  }
}

}  // namespace
}  // namespace lockstep::sgd_test
