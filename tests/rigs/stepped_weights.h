// Small weights of several types and shapes, and their training, for tests of optimizers.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <vector>

namespace lockstep::test {

using Weights = std::vector<at::Tensor>;

// The same in each call.
inline Weights parameters() {
  torch::manual_seed(3);
  return {torch::randn({7, 5}).requires_grad_(), torch::randn({33}).requires_grad_(),
          torch::randn({2, 3, 4}, at::kDouble).requires_grad_()};
}

inline Weights copies(const Weights& weights) {
  Weights result;
  for (const auto& weight : weights) result.push_back(weight.detach().clone().requires_grad_());
  return result;
}

// Gradients that depend on the weights, so that a difference would grow.
inline void train(torch::optim::Optimizer& optimizer, const Weights& weights, int steps) {
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    for (const at::Tensor& weight : weights) (weight.sin() * (step + 1)).sum().backward();
    optimizer.step();
  }
}

template <class Optimizer, class Options>
void expect_runs_the_closure_and_returns_its_loss(const Options& options) {
  const Weights weights = parameters();
  Optimizer optimizer(weights, options);
  const at::NoGradGuard no_grad;
  const torch::Tensor loss = optimizer.step([&] {
    torch::Tensor sum = weights[0].sum();
    sum.backward();
    return sum;
  });
  EXPECT_TRUE(torch::equal(loss, parameters()[0].sum()));
  EXPECT_FALSE(torch::equal(weights[0], parameters()[0])) << "nothing was stepped";
}

}  // namespace lockstep::test
