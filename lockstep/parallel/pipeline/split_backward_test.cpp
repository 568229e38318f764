// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/split_backward.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/types.h>

#include <cstddef>
#include <vector>

namespace lockstep::parallel::split_backward_test {
namespace {

torch::Tensor numbers(double first) {
  return torch::sin(torch::arange(16, torch::kDouble) + first).view({4, 4});
}

std::vector<torch::Tensor> outputs_of(const torch::Tensor& x, const torch::Tensor& weight) {
  return {torch::tanh(x.matmul(weight)).matmul(weight), weight};
}

TEST(SplitBackward, AWeightMayBeAnOutput) {
  const torch::Tensor weight = numbers(1).requires_grad_();
  // Exists as long as this handle, like DistributedDataParallel's.
  const auto node = torch::autograd::impl::grad_accumulator(weight);
  std::vector<torch::Tensor> inputs, input_gradients;
  torch::Tensor expected;
  const auto gradients_of = [](int i) {
    return std::vector<torch::Tensor>{numbers(20 + i), numbers(30 + i)};
  };
  for (int i = 0; i < 3; ++i) {
    inputs.push_back(numbers(10 + i).requires_grad_());
    torch::autograd::backward(outputs_of(inputs.back(), weight), gradients_of(i));
    input_gradients.push_back(inputs.back().grad());
  }
  expected = weight.grad();
  weight.mutable_grad() = torch::Tensor();

  std::vector<SplitBackward> splits;
  for (int i = 0; i < 3; ++i) {
    const torch::Tensor& input = inputs[static_cast<std::size_t>(i)];
    splits.emplace_back(outputs_of(input, weight), gradients_of(i));
    EXPECT_TRUE(torch::equal(splits.back().inputs({input}).at(0),
                             input_gradients[static_cast<std::size_t>(i)]));
  }
  for (SplitBackward& split : splits) split.weights();
  EXPECT_TRUE(torch::allclose(weight.grad(), expected, 1e-12, 1e-12));
  EXPECT_TRUE(node->pre_hooks().empty()) << node->pre_hooks().size() << " hooks are left";
}

}  // namespace
}  // namespace lockstep::parallel::split_backward_test
