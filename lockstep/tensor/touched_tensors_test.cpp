// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/touched_tensors.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/tensor/named_tensors.h"

namespace lockstep::tensor::touched_tensors_test {
namespace {

using Ids = std::vector<std::size_t>;

// Only touched tensors have memory: an operator that was not intercepted fails.
class OneAtATime final : public TouchWatcher {
 public:
  void add(const at::Tensor& parameter) {
    values_.push_back(parameter.detach().clone());
    tensors_.push_back(parameter);
  }

  void touched(const Ids& ids) override {
    touches.push_back(ids);
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      if (std::ranges::find(ids, i) == ids.end()) detach_memory(tensors_[i], "it is elsewhere");
    for (const std::size_t id : ids) {
      const auto memory = std::make_shared<at::Tensor>(values_[id].clone());
      attach_memory(tensors_[id], memory->mutable_data_ptr(), memory);
    }
  }

  std::vector<Ids> touches;

 private:
  std::vector<at::Tensor> tensors_, values_;
};

std::shared_ptr<OneAtATime> watch_all(const torch::nn::Module& module) {
  const auto watcher = std::make_shared<OneAtATime>();
  std::size_t id = 0;
  for (const auto& [name, parameter] : named_parameters(module)) {
    watcher->add(parameter);
    watch_tensor(parameter, {parameter.sizes(), parameter.scalar_type(), at::kCPU}, watcher, id++);
    detach_memory(parameter, "it is elsewhere");
  }
  return watcher;
}

struct Net : torch::nn::Module {
  Net() {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("first", first);
    register_module("lstm", lstm);
    register_module("last", last);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y = conv(x).flatten(1);
    y = torch::gelu(first(norm(y)));
    y = std::get<0>(lstm(y.unsqueeze(0))).squeeze(0);
    return torch::addmm(last->bias, y, last->weight.t());  // By a view.
  }

  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(2, 3, 3)};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({12})};
  torch::nn::Linear first{12, 8};
  torch::nn::LSTM lstm{8, 6};
  torch::nn::Linear last{6, 4};
};

TEST(TouchedTensors, HaveMemoryWhereverAnOperatorUsesThem) {
  torch::manual_seed(1);
  const auto net = std::make_shared<Net>();
  const torch::Tensor x = torch::randn({5, 2, 4, 4});
  const torch::Tensor expected = net->forward(x);
  expected.square().sum().backward();
  std::vector<torch::Tensor> gradients;
  for (const auto& parameter : net->parameters()) gradients.push_back(parameter.grad().clone());
  net->zero_grad();

  const auto watcher = watch_all(*net);
  const torch::Tensor y = net->forward(x);
  EXPECT_TRUE(torch::equal(y, expected));
  const std::size_t in_forward = watcher->touches.size();
  y.square().sum().backward();
  EXPECT_GT(watcher->touches.size(), in_forward) << "backward() uses weights, too";
  const auto parameters = net->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(torch::equal(parameters[i].grad(), gradients[i])) << i;
    EXPECT_TRUE(parameters[i].is_leaf());
  }
}

TEST(TouchedTensors, AreSeenInListsAndOptionalsAndOncePerOperator) {
  torch::nn::Linear linear(3, 4);
  const auto watcher = watch_all(*linear);
  const torch::NoGradGuard no_grad;
  linear(torch::ones({2, 3}));
  EXPECT_EQ(watcher->touches, (std::vector<Ids>{{1, 0}})) << "addmm(bias, x, weight)";
  watcher->touches.clear();
  torch::cat({linear->weight.flatten(), linear->bias, linear->bias});
  ASSERT_FALSE(watcher->touches.empty());
  EXPECT_EQ(watcher->touches.back(), (Ids{0, 1}));
}

TEST(TouchedTensors, AreNotTouchedByViewsAndShapeQueries) {
  torch::nn::Linear linear(3, 4);
  const auto watcher = watch_all(*linear);
  const torch::Tensor view = linear->weight.t().detach().unsqueeze(0).narrow(1, 0, 2);
  torch::zeros_like(linear->weight);
  torch::empty_like(view);
  linear->weight.new_zeros({2});
  EXPECT_TRUE(watcher->touches.empty());
  EXPECT_EQ(linear->weight.numel() + linear->weight.size(0), 16);
  view.sum();
  EXPECT_EQ(watcher->touches, (std::vector<Ids>{{0}}));
}

TEST(TouchedTensors, ResultsAndGradientsAreNotWatched) {
  torch::nn::Linear linear(3, 4);
  const auto watcher = watch_all(*linear);
  linear(torch::ones({2, 3})).sum().backward();
  const torch::Tensor copy = linear->weight.clone();
  watcher->touches.clear();
  (copy + linear->weight.grad()).sum();
  EXPECT_TRUE(watcher->touches.empty());
}

TEST(TouchedTensors, ReportWhyTheyHaveNoMemory) {
  torch::nn::Linear linear(3, 4);
  const auto watcher = watch_all(*linear);
  std::string text;
  try {
    linear->weight.data_ptr();
  } catch (const std::exception& error) {
    text = error.what();
  }
  EXPECT_NE(text.find("it is elsewhere"), text.npos) << text;
}

TEST(TouchedTensors, HaveNoMemoryAfterTheirWatcherIsDestroyed) {
  torch::nn::Linear linear(3, 4);
  watch_all(*linear).reset();
  EXPECT_ANY_THROW(linear(torch::ones({2, 3})));
}

TEST(TouchedTensors, LetTheWatchersExceptionLeaveTheOperator) {
  struct Refusing final : TouchWatcher {
    void touched(const Ids&) override { throw std::runtime_error("not now"); }
  };
  torch::nn::Linear linear(3, 4);
  const auto watcher = std::make_shared<Refusing>();
  watch_tensor(linear->weight, {linear->weight.sizes(), torch::kFloat, at::kCPU}, watcher, 0);
  EXPECT_THROW(linear(torch::ones({2, 3})), std::runtime_error);
}

}  // namespace
}  // namespace lockstep::tensor::touched_tensors_test
