// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/adam.h"

#include <gtest/gtest.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <sstream>
#include <vector>

#include "lockstep/comm/error.h"

namespace lockstep {
namespace {

std::vector<at::Tensor> parameters(at::ScalarType dtype = at::kFloat) {
  torch::manual_seed(3);
  return {torch::randn({7, 5}, dtype).requires_grad_(), torch::randn({33}, dtype).requires_grad_(),
          torch::randn({2, 3, 4}, dtype).requires_grad_()};
}

// Gradients that depend on the weights, so that a difference would grow.
template <class Optimizer>
void train(Optimizer& optimizer, const std::vector<at::Tensor>& weights, int steps) {
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss = torch::zeros({}, weights.front().options().requires_grad(false));
    for (const at::Tensor& weight : weights) loss = loss + (weight.sin() * (step + 1)).sum();
    loss.backward();
    optimizer.step();
  }
}

void expect_near(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, double most) {
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_LE((a[i] - b[i]).abs().max().item<double>(), most) << "parameter " << i;
}

TEST(Adam, StepsAsLibTorchsOwnDoes) {
  using Options = torch::optim::AdamOptions;
  for (const Options& options :
       {Options(1e-2), Options(1e-3).weight_decay(0.1), Options(1e-2).amsgrad(true).eps(1e-6),
        Options(1e-2).betas({0.8, 0.95})}) {
    const auto ours = parameters();
    const auto theirs = parameters();
    Adam fused(ours, options);
    torch::optim::Adam plain(theirs, options);
    train(fused, ours, 20);
    train(plain, theirs, 20);
    expect_near(ours, theirs, 1e-6);
  }
}

TEST(Adam, DoublesAndMixedTypesWorkInOneGroup) {
  auto ours = parameters(at::kDouble);
  ours[1] = parameters()[1];
  auto theirs = parameters(at::kDouble);
  theirs[1] = parameters()[1];
  Adam fused(ours, torch::optim::AdamOptions(1e-2));
  torch::optim::Adam plain(theirs, torch::optim::AdamOptions(1e-2));
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
    train(fused, {ours[i]}, 2 + static_cast<int>(i));  // Their step counts differ from here on.
    train(plain, {theirs[i]}, 2 + static_cast<int>(i));
  }
  expect_near(ours, theirs, 1e-6);
}

TEST(Adam, ItsArchivesAreLibTorchsOwn) {
  const auto ours = parameters();
  Adam fused(ours, torch::optim::AdamOptions(1e-2));
  train(fused, ours, 3);
  std::stringstream archive;
  torch::save(fused, archive);

  std::vector<at::Tensor> theirs;
  for (const auto& weight : ours) theirs.push_back(weight.detach().clone().requires_grad_());
  torch::optim::Adam plain(theirs, torch::optim::AdamOptions(1e-2));
  torch::load(plain, archive);
  train(fused, ours, 3);
  train(plain, theirs, 3);
  expect_near(ours, theirs, 1e-6);
}

TEST(Adam, ParametersWithoutAGradientAreLeftAlone) {
  const auto weights = parameters();
  const at::Tensor before = weights[1].detach().clone();
  Adam adam(weights, torch::optim::AdamOptions(1e-2));
  train(adam, {weights[0], weights[2]}, 2);
  EXPECT_TRUE(torch::equal(weights[1], before));
  EXPECT_EQ(adam.state().size(), 2U);
}

TEST(Adam, RunsTheClosureAndReturnsItsLoss) {
  const auto weights = parameters();
  Adam adam(weights, torch::optim::AdamOptions(1e-2));
  const torch::Tensor loss = adam.step([&] {
    torch::Tensor sum = weights[0].sum();
    sum.backward();
    return sum;
  });
  EXPECT_TRUE(loss.defined());
}

TEST(Adam, RefusesSparseGradients) {
  const auto weights = parameters();
  Adam adam(weights, torch::optim::AdamOptions(1e-2));
  weights[1].mutable_grad() = torch::ones({33}).to_sparse();
  EXPECT_THROW(adam.step(), Error);
}

}  // namespace
}  // namespace lockstep
