// tests/python/pruning_test.py compares plans with Torch-Pruning's.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/prune/channel_pruner.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/conv.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "examples/models/cnn.h"
#include "examples/models/efficientnet.h"
#include "examples/models/resnet.h"
#include "lockstep/checkpoint/checkpoint_reader.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "lockstep/tensor/module_state.h"
#include "lockstep/tensor/named_tensors.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::prune::channel_pruner_test {
namespace {

using test::fault_of;
using test::ScratchDirectory;
using torch::nn::Conv2dOptions;

std::map<std::string, at::Tensor> tensors_of(const torch::nn::Module& model) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : named_tensors(model)) tensors.emplace(name, tensor);
  return tensors;
}

const ChannelGroup& group_of(const PruningPlan& plan, const std::string& layer) {
  for (const ChannelGroup& group : plan.groups)
    if (std::find(group.outputs.begin(), group.outputs.end(), layer) != group.outputs.end())
      return group;
  ADD_FAILURE() << "no group has " << layer << ":\n" << to_string(plan);
  return plan.groups.front();
}

std::string digest_of(const torch::nn::Module& model) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : named_tensors(model)) tensors.push_back(tensor);
  return sha256(tensors);
}

void mask(const torch::nn::Module& model, const PruningPlan& plan) {
  const torch::NoGradGuard no_grad;
  auto tensors = tensors_of(model);
  for (const ChannelCut& cut : plan.cuts) {
    at::Tensor& tensor = tensors.at(cut.tensor);
    at::Tensor left = torch::zeros(tensor.size(cut.dim));
    left.index_fill_(0, torch::tensor(cut.kept), 1);
    std::vector<std::int64_t> shape(static_cast<std::size_t>(tensor.dim()), 1);
    shape[static_cast<std::size_t>(cut.dim)] = -1;
    tensor.mul_(left.view(shape));
  }
}

void vary_norms(const torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : named_tensors(model))
    if (tensor.dim() == 1 && tensor.is_floating_point()) at::Tensor(tensor).uniform_(0.5, 1.5);
}

template <class Model>
PruningPlan expect_pruned_equals_masked(Model& model, const at::Tensor& example,
                                        const ChannelPrunerOptions& options = {}) {
  vary_norms(model);
  ChannelPruner pruner(model, example, ProcessGroup::self(), options);
  const PruningPlan plan = pruner.plan();
  const auto copy = [&] {
    std::map<std::string, at::Tensor> copied;
    for (const auto& [name, tensor] : tensors_of(model)) copied[name] = tensor.detach().clone();
    return copied;
  };
  const auto before = copy();
  model.eval();
  const torch::NoGradGuard no_grad;
  mask(model, plan);
  const at::Tensor masked = model.forward(example);
  for (auto& [name, tensor] : tensors_of(model)) tensor.copy_(before.at(name));
  EXPECT_EQ(pruner.apply().cuts, plan.cuts);
  const at::Tensor pruned = model.forward(example);
  EXPECT_LE((pruned - masked).abs().max().template item<double>(),
            1e-5 * std::max(1.0, masked.abs().max().template item<double>()));
  EXPECT_GT(masked.abs().max().template item<double>(), 0);
  std::int64_t parameters = 0;
  for (const at::Tensor& parameter : model.parameters()) parameters += parameter.numel();
  EXPECT_EQ(parameters, plan.after.parameters);
  EXPECT_LT(plan.after.parameters, plan.before.parameters);
  return plan;
}

// --- Plans ---------------------------------------------------------------------------------------

TEST(ChannelPruner, FollowsFlattenedChannels) {
  torch::manual_seed(1);
  Cnn model(3, 32, 10);
  const PruningPlan plan = expect_pruned_equals_masked(model, torch::randn({2, 3, 32, 32}));
  ASSERT_EQ(plan.groups.size(), 4U) << to_string(plan);
  EXPECT_EQ(group_of(plan, "conv2").inputs, std::vector<std::string>{"linear1"});
  EXPECT_EQ(group_of(plan, "linear2").whole_because, "the model's output");
  EXPECT_EQ(model.linear1->weight.sizes(), at::IntArrayRef({256, 32 * 64}));
  EXPECT_EQ(model.conv2->options.in_channels(), 16);
  EXPECT_EQ(model.conv2->options.out_channels(), 32);
  EXPECT_EQ(model.linear1->options.in_features(), 32 * 64);
  EXPECT_EQ(plan.before.macs, 32 * 32 * 864 + 16 * 16 * 18432 + 4096 * 512 + 5120);
}

TEST(ChannelPruner, FollowsResidualAdditions) {
  torch::manual_seed(2);
  ResNet model = resnet18(10);
  const PruningPlan plan = expect_pruned_equals_masked(*model, torch::randn({2, 3, 64, 64}));
  const std::vector<std::string> together = group_of(plan, "conv1").outputs;
  for (const char* const layer : {"bn1", "layer1.0.conv2", "layer1.1.bn2"})
    EXPECT_EQ(std::count(together.begin(), together.end(), layer), 1) << layer;
  model->train();
  EXPECT_TRUE(model->forward(torch::randn({2, 3, 64, 64})).isfinite().all().item<bool>());
}

TEST(ChannelPruner, FollowsDepthwiseConvolutionsAndSqueezeAndExcitation) {
  torch::manual_seed(3);
  EfficientNet model = efficientnet_b(0, 10);
  expect_pruned_equals_masked(*model, torch::randn({1, 3, 64, 64}), {.importance = Importance::l2});
}

struct Mixed : torch::nn::Module {
  Mixed() {
    register_module("left", left);
    register_module("right", right);
    register_module("grouped", grouped);
    register_module("up", up);
    register_module("depthwise", depthwise);
    register_module("last", last);
    register_module("out", out);
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor joined = torch::cat({left(x), x, torch::sigmoid(right(x))}, 1);
    const at::Tensor wide = depthwise(up(torch::relu(grouped(joined))));
    const at::Tensor means = last(wide).mean({2, 3});
    return out(means.unsqueeze(1).expand({-1, 3, -1}).transpose(0, 1)).permute({1, 0, 2});
  }

  torch::nn::Conv2d left{Conv2dOptions(4, 8, 3).padding(1)};
  torch::nn::Conv2d right{Conv2dOptions(4, 12, 1)};
  torch::nn::Conv2d grouped{Conv2dOptions(24, 16, 3).groups(2)};
  torch::nn::ConvTranspose2d up{torch::nn::ConvTranspose2dOptions(16, 10, 2).stride(2)};
  torch::nn::Conv2d depthwise{Conv2dOptions(10, 20, 3).groups(10)};
  torch::nn::Conv2d last{Conv2dOptions(20, 6, 1)};
  torch::nn::Linear out{6, 5};
};

TEST(ChannelPruner, FollowsConcatenationsGroupsAndPermutations) {
  torch::manual_seed(4);
  Mixed model;
  const PruningPlan plan = expect_pruned_equals_masked(model, torch::randn({2, 4, 9, 9}));
  EXPECT_EQ(model.up->options.out_channels(), 5) << to_string(plan);
  EXPECT_EQ(model.depthwise->options.groups(), 5);
  EXPECT_EQ(model.depthwise->options.out_channels(), 10);
  EXPECT_EQ(model.grouped->options.groups(), 2);
  EXPECT_EQ(model.grouped->options.out_channels(), 8);
  EXPECT_EQ(model.last->options.out_channels(), 3);
}

// Channels are removed in pairs. Four pairs contain a channel of the model's input.
TEST(ChannelPruner, KeepsChannelsWhosePartnerStays) {
  Mixed model;
  const PruningPlan plan =
      ChannelPruner(model, torch::randn({2, 4, 9, 9}), ProcessGroup::self()).plan();
  std::int64_t with_input = 0;
  for (const ChannelGroup& group : plan.groups)
    if (group.whole_because == "the model's input") with_input += group.channels;
  EXPECT_EQ(with_input, 4) << to_string(plan);
  EXPECT_EQ(group_of(plan, "left").channels, 8);
  EXPECT_EQ(group_of(plan, "left").outputs, (std::vector<std::string>{"left", "right"}));
}

struct Block : torch::nn::Module {
  Block() {
    register_module("words", words);
    register_module("norm", norm);
    register_module("up", up);
    register_module("down", down);
    register_module("head", head);
  }

  at::Tensor forward(const at::Tensor& indices) {
    const at::Tensor x = words(indices);
    return head(x + down(torch::gelu(up(norm(x)))));
  }

  torch::nn::Embedding words{11, 8};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({8})};
  torch::nn::Linear up{8, 32};
  torch::nn::Linear down{torch::nn::LinearOptions(32, 8).bias(false)};
  torch::nn::Linear head{8, 11};
};

TEST(ChannelPruner, PrunesTheHiddenLayerOfATransformerAlone) {
  torch::manual_seed(5);
  Block model;
  const at::Tensor words = torch::randint(11, {3, 7});
  const PruningPlan plan = expect_pruned_equals_masked(model, words);
  EXPECT_EQ(model.up->weight.sizes(), at::IntArrayRef({16, 8}));
  EXPECT_EQ(model.down->weight.sizes(), at::IntArrayRef({8, 16}));
  EXPECT_EQ(group_of(plan, "down").whole_because, "a LayerNorm over the channels");
}

TEST(ChannelPruner, KeepsWhatAnUnknownOperationReads) {
  struct Sorted : torch::nn::Module {
    Sorted() { register_module("conv", conv), register_module("out", out); }
    at::Tensor forward(const at::Tensor& x) {
      return out(std::get<0>(conv(x).sort(1)).mean({2, 3}));
    }
    torch::nn::Conv2d conv{Conv2dOptions(1, 4, 1)};
    torch::nn::Linear out{4, 2};
  } model;
  ChannelPruner pruner(model, torch::randn({2, 1, 4, 4}), ProcessGroup::self());
  EXPECT_EQ(group_of(pruner.plan(), "conv").whole_because, "no rule for Sort");
  std::string text;
  EXPECT_EQ(fault_of([&] { pruner.apply(); }, &text), Fault::misuse);
  EXPECT_NE(text.find("no channel to remove"), std::string::npos) << text;
  EXPECT_NE(text.find("no rule for Sort"), std::string::npos) << text;
}

TEST(ChannelPruner, KeepsWhatForwardDividesByNumbers) {
  struct Halves : torch::nn::Module {
    Halves() { register_module("conv", conv), register_module("out", out); }
    at::Tensor forward(const at::Tensor& x) {
      const auto halves = conv(x).chunk(2, 1);
      return out((halves[0] * torch::sigmoid(halves[1])).mean({2, 3}));
    }
    torch::nn::Conv2d conv{Conv2dOptions(1, 8, 1)};
    torch::nn::Linear out{4, 2};
  } model;
  const PruningPlan plan =
      ChannelPruner(model, torch::randn({2, 1, 4, 4}), ProcessGroup::self()).plan();
  EXPECT_EQ(group_of(plan, "conv").whole_because, "Split divides the channels");
}

TEST(ChannelPruner, ExcludesByPatternAndTakesASparsityForALayer) {
  Cnn model(1, 28, 10);
  ChannelPruner pruner(model, torch::randn({1, 1, 28, 28}), ProcessGroup::self());
  pruner.exclude("conv1");
  pruner.set_sparsity("linear*", 0.75);
  const PruningPlan plan = pruner.plan();
  EXPECT_EQ(group_of(plan, "conv1").whole_because, "excluded");
  EXPECT_EQ(group_of(plan, "conv1").kept, 32);
  EXPECT_EQ(group_of(plan, "conv2").kept, 32);
  EXPECT_EQ(group_of(plan, "linear1").kept, 128);
  std::string text;
  EXPECT_EQ(fault_of([&] { pruner.exclude("conv3"); }, &text), Fault::misuse);
  EXPECT_NE(text.find("conv3"), std::string::npos) << text;
  EXPECT_EQ(fault_of([&] { pruner.set_sparsity("conv1", 1); }), Fault::misuse);
}

TEST(ChannelPruner, RemovesTheLeastImportantChannels) {
  Cnn model(1, 28, 10);
  {
    const torch::NoGradGuard no_grad;
    for (std::int64_t i = 0; i < 32; ++i) model.conv1->weight[i].fill_(i * 7 % 32 + 1);
  }
  ChannelPruner pruner(model, torch::randn({1, 1, 28, 28}), ProcessGroup::self(),
                       {.sparsity = 0.75, .round_to = 3});
  const PruningPlan plan = pruner.plan();
  EXPECT_EQ(group_of(plan, "conv1").kept, 9);
  const auto cut = std::find_if(plan.cuts.begin(), plan.cuts.end(), [](const ChannelCut& each) {
    return each.tensor == "conv1.weight";
  });
  ASSERT_NE(cut, plan.cuts.end());
  std::vector<std::int64_t> expected;
  for (std::int64_t i = 0; i < 32; ++i)
    if (i * 7 % 32 >= 32 - 9) expected.push_back(i);
  EXPECT_EQ(cut->kept, expected);
}

TEST(ChannelPruner, ChoosesAmongAllChannelsTogether) {
  Cnn model(1, 28, 10);
  {
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& weight : {model.conv1->weight, model.conv2->weight}) weight.fill_(1);
    model.linear1->weight.fill_(1e-3).slice(0, 0, 8).fill_(1);
  }
  const ChannelPrunerOptions options{.sparsity = 504.0 / 608, .global = true};
  const PruningPlan plan =
      ChannelPruner(model, torch::randn({1, 1, 28, 28}), ProcessGroup::self(), options).plan();
  EXPECT_EQ(group_of(plan, "linear1").kept, 8);
  EXPECT_EQ(group_of(plan, "conv1").kept, 32);
  EXPECT_EQ(group_of(plan, "conv2").kept, 64);
}

TEST(ChannelPruner, KeepsAChannelOfEachLayer) {
  Cnn model(1, 28, 10);
  {
    const torch::NoGradGuard no_grad;
    model.conv1->weight.fill_(1);
    model.linear1->weight.fill_(0);
  }
  const ChannelPrunerOptions options{.sparsity = 0.95, .global = true};
  const PruningPlan plan =
      ChannelPruner(model, torch::randn({1, 1, 28, 28}), ProcessGroup::self(), options).plan();
  EXPECT_EQ(group_of(plan, "linear1").kept, 1);
}

TEST(ChannelPruner, TakesTheScalesOfBatchNorm) {
  torch::nn::Sequential model(torch::nn::Conv2d(Conv2dOptions(1, 4, 1)), torch::nn::BatchNorm2d(4),
                              torch::nn::Conv2d(Conv2dOptions(4, 4, 1)),
                              torch::nn::Conv2d(Conv2dOptions(4, 1, 1)));
  const at::Tensor scales = torch::tensor({0.5, -2.0, 0.1, 1.0}, at::kFloat);
  model[1]->as<torch::nn::BatchNorm2dImpl>()->weight.detach().copy_(scales);
  ChannelPruner pruner(*model, torch::randn({2, 1, 4, 4}), ProcessGroup::self(),
                       {.importance = Importance::batch_norm});
  const PruningPlan plan = pruner.apply();
  EXPECT_EQ(group_of(plan, "2").whole_because, "no BatchNorm");
  EXPECT_EQ(plan.cuts.front().kept, (std::vector<std::int64_t>{1, 3}));
  const auto& norm = *model[1]->as<torch::nn::BatchNorm2dImpl>();
  EXPECT_EQ(norm.running_mean.numel(), 2);
  EXPECT_EQ(norm.options.num_features(), 2);
}

TEST(ChannelPruner, TakesGradientsForTaylor) {
  torch::nn::Sequential model(torch::nn::Linear(3, 4), torch::nn::Linear(4, 1));
  ChannelPruner pruner(*model, torch::randn({2, 3}), ProcessGroup::self(),
                       {.importance = Importance::taylor});
  std::string text;
  EXPECT_EQ(fault_of([&] { pruner.plan(); }, &text), Fault::misuse);
  EXPECT_NE(text.find("0.weight"), std::string::npos) << text;
  auto& weight = model->at<torch::nn::LinearImpl>(0).weight;
  weight.detach().fill_(1);
  weight.mutable_grad() =
      torch::tensor({{1., -1., 0.1}, {1., 1., 1.}, {0., 0., -2.}, {0., 0., 0.}}).to(at::kFloat);
  model->at<torch::nn::LinearImpl>(1).weight.mutable_grad() = torch::ones({1, 4});
  EXPECT_EQ(pruner.plan().cuts.front().kept, (std::vector<std::int64_t>{1, 2}));
}

TEST(ChannelPruner, RefusesWeightsThatAreNotFinite) {
  Cnn model(1, 28, 10);
  model.conv2->weight.detach().flatten()[3] = std::numeric_limits<float>::quiet_NaN();
  std::string text;
  const auto plan = [&] {
    ChannelPruner(model, torch::randn({1, 1, 28, 28}), ProcessGroup::self()).plan();
  };
  EXPECT_EQ(fault_of(plan, &text), Fault::misuse);
  EXPECT_NE(text.find("conv2"), std::string::npos) << text;
}

TEST(ChannelPruner, LeavesTheModelAsItWasWhenItPlans) {
  torch::manual_seed(6);
  ResNet model = resnet18(10);
  model->at<torch::nn::Conv2dImpl>(0).weight.set_requires_grad(false);
  const at::Tensor drawn = [] {
    torch::manual_seed(7);
    return torch::rand({4});
  }();
  const std::string before = digest_of(*model);
  torch::manual_seed(7);
  const PruningPlan plan =
      ChannelPruner(*model, torch::randn({1, 3, 64, 64}), ProcessGroup::self()).plan();
  torch::manual_seed(7);
  EXPECT_TRUE(torch::equal(torch::rand({4}), drawn));
  EXPECT_EQ(digest_of(*model), before);
  EXPECT_TRUE(model->is_training());
  EXPECT_FALSE(model->at<torch::nn::Conv2dImpl>(0).weight.requires_grad());
  EXPECT_EQ(group_of(plan, "conv1").kept, 32);
}

// --- Execution -----------------------------------------------------------------------------------

template <class Optimizer>
void expect_cut_state(Optimizer& optimizer, Cnn& model) {
  const at::Tensor images = torch::randn({4, 1, 28, 28});
  const auto step = [&] {
    optimizer.zero_grad();
    const at::Tensor loss = model.forward(images).square().mean();
    loss.backward();
    optimizer.step();
    return loss.template item<double>();
  };
  step();
  const auto moments_of = [&](const at::Tensor& parameter) {
    return parts_of(*optimizer.state().at(parameter.unsafeGetTensorImpl())).tensors;
  };
  std::vector<at::Tensor> before;
  for (const auto& [name, tensor] : moments_of(model.linear1->weight))
    before.push_back(tensor->defined() ? tensor->clone() : at::Tensor());
  ChannelPruner pruner(model, images, ProcessGroup::self());
  const PruningPlan plan = pruner.apply(optimizer);
  const auto after = moments_of(model.linear1->weight);
  for (std::size_t i = 0; i < after.size(); ++i) {
    at::Tensor expected = before[i];
    for (const ChannelCut& cut : plan.cuts)
      if (cut.tensor == "linear1.weight" && expected.defined())
        expected = expected.index_select(cut.dim, torch::tensor(cut.kept));
    EXPECT_EQ(after[i].second->defined(), expected.defined());
    if (!expected.defined()) continue;
    EXPECT_TRUE(torch::equal(*after[i].second, expected)) << after[i].first;
  }
  EXPECT_FALSE(model.conv1->weight.grad().defined());
  const double first = step();
  for (int i = 0; i < 5; ++i) step();
  EXPECT_LT(step(), first);
}

TEST(ChannelPruner, CutsTheStateOfOptimizers) {
  torch::manual_seed(8);
  Cnn model(1, 28, 10);
  lockstep::Adam adam(model.parameters(), torch::optim::AdamOptions(1e-3).amsgrad(true));
  expect_cut_state(adam, model);
  Cnn other(1, 28, 10);
  torch::optim::SGD sgd(other.parameters(), torch::optim::SGDOptions(1e-3).momentum(0.9));
  expect_cut_state(sgd, other);
}

TEST(ChannelPruner, NamesTheLayerBehindWhichForwardHasANumber) {
  struct Fixed : Cnn {
    Fixed() : Cnn(1, 28, 10) {}
    at::Tensor forward(at::Tensor x) {
      x = torch::max_pool2d(torch::relu(conv1(x)), 2);
      x = torch::max_pool2d(torch::relu(conv2(x)), 2);
      return linear2(torch::relu(linear1(x.view({-1, 3136}))));
    }
  } model;
  const std::string before = digest_of(model);
  ChannelPruner pruner(model, torch::randn({1, 1, 28, 28}), ProcessGroup::self());
  std::string text;
  EXPECT_EQ(fault_of([&] { pruner.apply(); }, &text), Fault::misuse);
  EXPECT_NE(text.find("fewer channels in conv2."), std::string::npos) << text;
  EXPECT_NE(text.find("3136"), std::string::npos) << text;
  EXPECT_EQ(digest_of(model), before);
  EXPECT_EQ(model.conv2->options.out_channels(), 64);
  pruner.exclude("conv2");
  EXPECT_EQ(group_of(pruner.apply(), "linear1").kept, 256);
}

// Convolutions whose `groups` change if few channels remain, and a forward() that then throws.
struct Grouped : torch::nn::Module {
  Grouped() {
    register_module("first", first);
    register_module("depthwise", depthwise);
    register_module("grouped", grouped);
    register_module("act", act);
    register_module("last", last);
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = act(grouped(depthwise(first(x))));
    if (y.size(1) != 16) throw std::runtime_error("forward() counts 16 channels");
    return last(y).mean({2, 3});
  }

  torch::nn::Conv2d first{Conv2dOptions(1, 4, 3)};
  torch::nn::Conv2d depthwise{Conv2dOptions(4, 4, 3).groups(4)};
  torch::nn::Conv2d grouped{Conv2dOptions(4, 16, 3).groups(2)};
  torch::nn::PReLU act{torch::nn::PReLUOptions().num_parameters(16)};
  torch::nn::Conv2d last{Conv2dOptions(16, 2, 1)};
};

TEST(ChannelPruner, ChangesNothingWhenItRefuses) {
  torch::manual_seed(10);
  Grouped model;
  const at::Tensor images = torch::randn({2, 1, 9, 9});
  model.forward(images).square().sum().backward();
  const std::string before = digest_of(model);
  const at::Tensor output = model.forward(images).detach();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : model.parameters())
    gradients.push_back(parameter.grad().clone());
  ChannelPruner pruner(model, images, ProcessGroup::self(),
                       {.sparsity = 0.95, .importance = Importance::taylor});
  std::string text;
  EXPECT_EQ(fault_of([&] { pruner.apply(); }, &text), Fault::misuse);
  EXPECT_NE(text.find("fewer channels in grouped"), std::string::npos) << text;
  EXPECT_NE(text.find("forward() counts 16 channels"), std::string::npos) << text;
  EXPECT_EQ(digest_of(model), before);
  EXPECT_TRUE(torch::equal(model.forward(images), output));
  EXPECT_EQ(model.depthwise->options.groups(), 4);
  EXPECT_EQ(model.grouped->options.groups(), 2);
  EXPECT_EQ(model.grouped->options.in_channels(), 4);
  const auto parameters = model.parameters();
  for (std::size_t i = 0; i < gradients.size(); ++i)
    EXPECT_TRUE(torch::equal(parameters[i].grad(), gradients[i])) << i;
  pruner.exclude("grouped");
  pruner.apply();  // Needs the gradients.
  EXPECT_EQ(model.depthwise->options.out_channels(), 2);
  for (const at::Tensor& parameter : model.parameters()) EXPECT_FALSE(parameter.grad().defined());
}

TEST(ChannelPruner, AdaptsTheOptionsOfPRelu) {
  torch::nn::Sequential model(torch::nn::Conv2d(Conv2dOptions(1, 4, 1)),
                              torch::nn::PReLU(torch::nn::PReLUOptions().num_parameters(4)),
                              torch::nn::Conv2d(Conv2dOptions(4, 2, 1)));
  ChannelPruner(*model, torch::randn({2, 1, 4, 4}), ProcessGroup::self()).apply();
  const auto& act = *model[1]->as<torch::nn::PReLUImpl>();
  EXPECT_EQ(act.weight.numel(), 2);
  EXPECT_EQ(act.options.num_parameters(), 2);
}

TEST(ChannelPruner, CutsTheStateOfSeveralOptimizers) {
  torch::manual_seed(11);
  Cnn model(1, 28, 10);
  lockstep::Adam adam(model.conv1->parameters(), 1e-3);
  std::vector<at::Tensor> rest;
  for (const auto& layer :
       {model.conv2->parameters(), model.linear1->parameters(), model.linear2->parameters()})
    rest.insert(rest.end(), layer.begin(), layer.end());
  torch::optim::SGD sgd(rest, torch::optim::SGDOptions(1e-3).momentum(0.9));
  const at::Tensor images = torch::randn({4, 1, 28, 28});
  const auto step = [&] {
    model.forward(images).square().mean().backward();
    adam.step();
    sgd.step();
  };
  step();
  ChannelPruner(model, images, ProcessGroup::self()).apply(adam, sgd);
  const auto expect_sized = [](torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
    for (const auto& [name, moment] :
         parts_of(*optimizer.state().at(parameter.unsafeGetTensorImpl())).tensors)
      if (moment->defined()) {
        EXPECT_EQ(moment->sizes(), parameter.sizes()) << name;
      }
  };
  expect_sized(adam, model.conv1->weight);
  expect_sized(sgd, model.linear1->weight);
  step();
}

TEST(ChannelPruner, RefusesTheOptimizerOfAnotherModel) {
  Cnn model(1, 28, 10);
  const Cnn other(1, 28, 10);
  torch::optim::SGD own(model.linear2->parameters(), torch::optim::SGDOptions(1e-3));
  torch::optim::SGD foreign(other.parameters(), torch::optim::SGDOptions(1e-3));
  ChannelPruner pruner(model, torch::randn({1, 1, 28, 28}), ProcessGroup::self());
  const std::int64_t channels = model.conv1->weight.size(0);
  std::string text;
  EXPECT_EQ(fault_of([&] { pruner.apply(own, foreign); }, &text), Fault::misuse);
  EXPECT_NE(text.find("an optimizer that has no parameter of this model"), text.npos) << text;
  EXPECT_EQ(model.conv1->weight.size(0), channels) << "nothing is changed";
  pruner.apply(own);
}

TEST(ChannelPruner, RefusesParametersInUseAndStateOfSeveralRanks) {
  run_in_process(1, [](ProcessGroup& world) {
    auto model = std::make_shared<Cnn>(1, 28, 10);
    const at::Tensor example = torch::randn({1, 1, 28, 28});
    ChannelPruner pruner(*model, example, ProcessGroup::self());
    std::string text;
    {
      DistributedDataParallel ddp(model, world);
      EXPECT_EQ(fault_of([&] { pruner.apply(); }, &text), Fault::misuse);
      EXPECT_NE(text.find("conv1.weight is in use"), std::string::npos) << text;
    }
    ZeroRedundancyOptimizer<torch::optim::Adam> zero(model->parameters(), world,
                                                     torch::optim::AdamOptions(1e-3));
    EXPECT_EQ(fault_of([&] { pruner.apply(zero); }), Fault::unsupported);
    pruner.apply();
  });
}

TEST(ChannelPruner, RefusesParametersThatRanksShare) {
  run_in_process(2, [](ProcessGroup& world) {
    auto model = std::make_shared<Cnn>(1, 28, 10);
    DistributedDataParallel ddp(model, world, {.share_parameters = true});
    std::string text;
    const auto make = [&] {
      ChannelPruner pruner(*model, torch::randn({1, 1, 28, 28}), ProcessGroup::self());
    };
    EXPECT_EQ(fault_of(make, &text), Fault::misuse);
    EXPECT_NE(text.find("share_parameters"), std::string::npos) << text;
  });
}

// --- Ranks and checkpoints -----------------------------------------------------------------------

// Each rank alone would keep other channels.
TEST(ChannelPruner, TakesMeansOfImportancesOverRanks) {
  const double norms[2][4] = {{9, 0, 6, 5}, {0, 9, 5, 6}};
  run_in_process(2, [&](ProcessGroup& world) {
    torch::nn::Sequential model(torch::nn::Linear(3, 4), torch::nn::Linear(4, 1));
    const at::Tensor weight = model->at<torch::nn::LinearImpl>(0).weight.detach();
    for (std::int64_t i = 0; i < 4; ++i) weight[i].fill_(norms[world.rank()][i]);
    ChannelPruner pruner(*model, torch::randn({2, 3}), world);
    EXPECT_EQ(pruner.plan().cuts.front().kept, (std::vector<std::int64_t>{2, 3}));
  });
}

TEST(ChannelPruner, PrunesTheSameChannelsOnAllRanks) {
  std::vector<std::vector<ChannelCut>> cuts(2);
  run_in_process(2, [&](ProcessGroup& world) {
    auto model = std::make_shared<Cnn>(1, 28, 10);  // Ranks draw from one generator.
    ChannelPruner pruner(*model, torch::randn({1, 1, 28, 28}), world);
    cuts[static_cast<std::size_t>(world.rank())] = pruner.apply().cuts;
    DistributedDataParallel ddp(model, world);
    ddp(torch::randn({2, 1, 28, 28})).sum().backward();
    EXPECT_EQ(model->conv1->weight.grad().size(0), 16);
  });
  EXPECT_FALSE(cuts[0].empty());
  EXPECT_EQ(cuts[0], cuts[1]);
}

TEST(ChannelPruner, RefusesOtherPlansOnOtherRanks) {
  run_in_process(2, [&](ProcessGroup& world) {
    Cnn model(1, 28, 10);
    ChannelPruner pruner(model, torch::randn({1, 1, 28, 28}), world);
    if (world.rank() == 1) pruner.exclude("conv1");
    std::string text;
    EXPECT_EQ(fault_of([&] { pruner.apply(); }, &text), Fault::mismatch);
    EXPECT_NE(text.find("group conv1"), std::string::npos) << text;
  });
}

TEST(ChannelPruner, ResumesFromACheckpointOfAPrunedModel) {
  torch::manual_seed(9);
  const ScratchDirectory scratch;
  const at::Tensor images = torch::randn({2, 1, 28, 28});
  std::string saved;
  run_in_process(1, [&](ProcessGroup& world) {
    Cnn model(1, 28, 10);
    ChannelPruner pruner(model, images, ProcessGroup::self());
    EXPECT_FALSE(pruner.apply_saved(scratch.path()));
    pruner.apply();
    pruner.apply();  // A quarter remains.
    saved = digest_of(model);
    Checkpointer checkpoints(scratch.path(), world);
    const auto weights = state_of(model);
    checkpoints.save(3, {{"pruning", &pruner}, {"model", weights.get()}});
  });
  run_in_process(1, [&](ProcessGroup& world) {
    Cnn model(1, 28, 10);
    ChannelPruner pruner(model, images, ProcessGroup::self());
    EXPECT_TRUE(pruner.apply_saved(scratch.path()));
    EXPECT_EQ(model.conv1->options.out_channels(), 8);
    Checkpointer checkpoints(scratch.path(), world);
    const auto weights = state_of(model);
    EXPECT_EQ(checkpoints.resume({{"pruning", &pruner}, {"model", weights.get()}})->step, 3);
    EXPECT_EQ(digest_of(model), saved);
    EXPECT_EQ(pruner.apply().after.parameters < 100'000, true);
    EXPECT_EQ(fault_of([&] { pruner.apply_saved(scratch.path()); }), Fault::misuse);
  });
}

void damage(const std::filesystem::path& checkpoint) {
  for (const CheckpointReader::File& file : CheckpointReader(checkpoint).files()) {
    if (file.part != "model") continue;
    std::fstream bytes(checkpoint / file.name, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(-1, std::ios::end);
    const int last = bytes.get();
    bytes.seekp(-1, std::ios::end);
    bytes.put(static_cast<char>(last ^ 1));
  }
}

TEST(ChannelPruner, PrunesAsTheNewestCheckpointThatIsWhole) {
  const ScratchDirectory scratch;
  const at::Tensor images = torch::randn({2, 1, 28, 28});
  run_in_process(1, [&](ProcessGroup& world) {
    Cnn model(1, 28, 10);
    ChannelPruner pruner(model, images, ProcessGroup::self());
    Checkpointer checkpoints(scratch.path(), world);
    const auto weights = state_of(model);
    for (const int step : {3, 4}) {
      pruner.apply();
      checkpoints.save(step, {{"pruning", &pruner}, {"model", weights.get()}});
    }
  });
  damage(*latest_checkpoint(scratch.path()));
  run_in_process(1, [&](ProcessGroup& world) {
    Cnn model(1, 28, 10);
    ChannelPruner pruner(model, images, ProcessGroup::self());
    EXPECT_TRUE(pruner.apply_saved(scratch.path()));
    EXPECT_EQ(model.conv1->options.out_channels(), 16);
    const auto weights = state_of(model);
    EXPECT_EQ(load_checkpoint(list_checkpoints(scratch.path()).back(),
                              {{"pruning", &pruner}, {"model", weights.get()}}, world),
              3);
  });
}

TEST(ChannelPruner, RefusesSavedChannelsThatRepeat) {
  Cnn model(1, 28, 10);
  ChannelPruner pruner(model, torch::randn({1, 1, 28, 28}), ProcessGroup::self());
  StateDict state;
  state.values.emplace("is_pruned", true);
  state.tensors.emplace("conv1.weight.0", whole(torch::tensor({0, 3, 3}, at::kLong)));
  EXPECT_EQ(fault_of([&] { pruner.load_state_dict(state); }), Fault::misuse);
  EXPECT_EQ(model.conv1->weight.size(0), 32);
}

TEST(ChannelPruner, RefusesTheChannelsOfAnotherModel) {
  Cnn model(1, 28, 10);
  ChannelPruner pruner(model, torch::randn({1, 1, 28, 28}), ProcessGroup::self());
  pruner.apply();
  ResNet other = resnet18(10);
  ChannelPruner others(*other, torch::randn({1, 3, 64, 64}), ProcessGroup::self());
  std::string text;
  EXPECT_EQ(fault_of([&] { others.wanted(pruner.state_dict()); }, &text), Fault::misuse);
  EXPECT_NE(text.find("conv2.bias.0"), std::string::npos) << text;
}

}  // namespace
}  // namespace lockstep::prune::channel_pruner_test
