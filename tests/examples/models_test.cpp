// Tests the models of examples/: published size, Python's names, and that they can be trained.

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <string>

#include "examples/models/efficientnet.h"
#include "examples/models/gpt.h"
#include "examples/models/llama.h"
#include "examples/models/resnet.h"
#include "examples/models/vit.h"

namespace {

std::int64_t parameters_of(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const auto& parameter : module.parameters()) count += parameter.numel();
  return count;
}

// Expects a finite gradient of every parameter; a matrix's gradient must not be zero.
void expect_gradients(const torch::nn::Module& module, const torch::Tensor& logits,
                      const torch::Tensor& targets) {
  ASSERT_TRUE(logits.isfinite().all().item<bool>());
  torch::nn::functional::cross_entropy(logits, targets).backward();
  for (const auto& item : module.named_parameters()) {
    const torch::Tensor& gradient = item.value().grad();
    ASSERT_TRUE(gradient.defined()) << item.key();
    EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << item.key();
    EXPECT_TRUE(item.value().dim() < 2 || gradient.any().item<bool>()) << item.key();
  }
}

template <class Model>
void expect_to_learn_images(Model net) {
  const torch::Tensor logits = net->forward(torch::randn({4, 3, 64, 64}));
  ASSERT_EQ(logits.sizes(), (std::vector<std::int64_t>{4, 10}));
  expect_gradients(*net, logits, torch::tensor({1, 7, 7, 9}));
}

bool has(const torch::nn::Module& module, const std::string& parameter,
         std::vector<std::int64_t> sizes) {
  const auto* found = module.named_parameters().find(parameter);
  return found != nullptr && found->sizes() == sizes;
}

TEST(ResNet, HasTheParametersThatAreKnown) {
  EXPECT_EQ(parameters_of(*resnet18()), 11'689'512);
  EXPECT_EQ(parameters_of(*resnet34()), 21'797'672);
}

TEST(ResNet, NamesThemAsTorchvisionDoes) {
  const ResNet net = resnet18();
  EXPECT_EQ(net->named_parameters().size(), 62u);
  EXPECT_EQ(net->named_buffers().size(), 60u);
  EXPECT_TRUE(has(*net, "conv1.weight", {64, 3, 7, 7}));
  EXPECT_TRUE(has(*net, "bn1.bias", {64}));
  EXPECT_TRUE(has(*net, "layer1.1.bn2.weight", {64}));
  EXPECT_TRUE(has(*net, "layer2.0.downsample.0.weight", {128, 64, 1, 1}));
  EXPECT_TRUE(has(*net, "layer4.0.downsample.1.bias", {512}));
  EXPECT_TRUE(has(*net, "fc.weight", {1000, 512}));
}

TEST(ResNet, Learns) { expect_to_learn_images(resnet18(10)); }

TEST(ResNet, TakesAnotherNorm) {
  const MakeNorm group_norm = [](std::int64_t channels) {
    return torch::nn::AnyModule(torch::nn::GroupNorm(torch::nn::GroupNormOptions(8, channels)));
  };
  const ResNet net = resnet18(10, group_norm);
  EXPECT_EQ(net->named_buffers().size(), 0u);
  expect_to_learn_images(net);
}

// Code that converts batch norms searches Sequentials, because typed members cannot be replaced.
template <class Model>
void expect_norms_in_sequentials(const Model& net) {
  std::size_t norms = 0;
  std::size_t replaceable = 0;
  for (const auto& module : net->modules()) {
    norms += module->template as<torch::nn::BatchNorm2d>() != nullptr;
    if (auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(module.get()))
      replaceable += std::count_if(sequential->begin(), sequential->end(), [](const auto& layer) {
        return layer.ptr()->template as<torch::nn::BatchNorm2d>() != nullptr;
      });
  }
  EXPECT_GT(norms, 0u);
  EXPECT_EQ(replaceable, norms);
}

TEST(ResNet, EveryBatchNormCanBeReplaced) { expect_norms_in_sequentials(resnet18(10)); }

TEST(EfficientNet, HasTheParametersThatAreKnown) {
  EXPECT_EQ(parameters_of(*efficientnet_b(0)), 5'288'548);
  EXPECT_EQ(parameters_of(*efficientnet_b(7)), 66'347'960);
  EXPECT_THROW(efficientnet_b(8), c10::Error);
}

TEST(EfficientNet, NamesThemAsTorchvisionDoes) {
  const EfficientNet net = efficientnet_b(0);
  EXPECT_EQ(net->named_parameters().size(), 213u);
  EXPECT_EQ(net->named_buffers().size(), 147u);
  EXPECT_TRUE(has(*net, "features.0.0.weight", {32, 3, 3, 3}));
  EXPECT_TRUE(has(*net, "features.1.0.block.1.fc1.weight", {8, 32, 1, 1}));
  EXPECT_TRUE(has(*net, "features.2.0.block.1.0.weight", {96, 1, 3, 3}));
  EXPECT_TRUE(has(*net, "features.7.0.block.3.1.bias", {320}));
  EXPECT_TRUE(has(*net, "features.8.0.weight", {1280, 320, 1, 1}));
  EXPECT_TRUE(has(*net, "classifier.1.weight", {1000, 1280}));
}

TEST(EfficientNet, Learns) {
  torch::manual_seed(0);  // Otherwise stochastic depth might skip a block for every sample.
  expect_to_learn_images(efficientnet_b(0, 10));
}

TEST(EfficientNet, ABlockIsLeftOutForSomeSamplesInTrainingOnly) {
  torch::manual_seed(0);
  MBConv block(MBConvOptions{.expand = 1, .kernel = 3, .stride = 1, .in = 8, .out = 8},
               /*drop=*/0.5, batch_norm);
  const torch::Tensor x = torch::randn({100, 8, 4, 4});
  const auto left_out = [&] {
    return (block->forward(x) == x).flatten(1).all(1).sum().item<std::int64_t>();
  };
  EXPECT_NEAR(static_cast<double>(left_out()), 50, 20);
  block->eval();
  EXPECT_EQ(left_out(), 0);
}

TEST(EfficientNet, EveryBatchNormCanBeReplaced) {
  expect_norms_in_sequentials(efficientnet_b(0, 10));
}

TEST(Gpt, HasTheParametersOfGpt2Small) { EXPECT_EQ(parameters_of(Gpt({})), 124'439'808); }

// For a decoder with a vocabulary of 50.
template <class Net>
void expect_to_learn_tokens(Net& net) {
  const torch::Tensor tokens = torch::randint(50, {3, 13});
  const torch::Tensor logits = net.forward(tokens.slice(1, 0, 12));
  ASSERT_EQ(logits.sizes(), (std::vector<std::int64_t>{3, 12, 50}));
  expect_gradients(net, logits.flatten(0, 1), tokens.slice(1, 1).flatten());
}

template <class Net>
void expect_causal(Net& net) {
  const torch::Tensor tokens = torch::randint(49, {1, 12});
  const torch::Tensor before = net.forward(tokens);
  tokens[0][6] = 49;
  const torch::Tensor differences = (net.forward(tokens) - before).abs().amax(2)[0];
  EXPECT_EQ(differences.slice(0, 0, 6).max().item<float>(), 0);
  EXPECT_GT(differences.slice(0, 6).min().item<float>(), 0);
}

const GptOptions small{.vocabulary = 50, .block_size = 12, .layers = 2, .heads = 2, .width = 16};

TEST(Gpt, Learns) {
  const auto net = std::make_shared<Gpt>(small);
  EXPECT_TRUE(has(*net, "transformer.h.1.attn.c_attn.weight", {48, 16}));
  expect_to_learn_tokens(*net);
}

TEST(Gpt, ATokenSeesOnlyThoseBeforeIt) {
  Gpt net(small);
  expect_causal(net);
}

TEST(Gpt, RefusesWhatItHasNoPositionsFor) {
  EXPECT_THROW(Gpt(small).forward(torch::zeros({1, 13}, torch::kLong)), c10::Error);
  EXPECT_THROW(Gpt({.heads = 7}), c10::Error);
}

TEST(Llama, HasTheParametersOfSmolLM) { EXPECT_EQ(parameters_of(Llama({})), 134'515'008); }

const LlamaOptions small_llama{
    .vocabulary = 50, .layers = 2, .heads = 4, .kv_heads = 2, .width = 16, .hidden = 24};

TEST(Llama, NamesThemAsHuggingFaceDoes) {
  LlamaOptions options = small_llama;
  options.tied = false;
  const Llama net(options);
  EXPECT_EQ(net.named_parameters().size(), 2 * 9 + 3u);
  EXPECT_TRUE(has(net, "model.embed_tokens.weight", {50, 16}));
  EXPECT_TRUE(has(net, "model.layers.0.input_layernorm.weight", {16}));
  EXPECT_TRUE(has(net, "model.layers.0.self_attn.q_proj.weight", {16, 16}));
  EXPECT_TRUE(has(net, "model.layers.1.self_attn.k_proj.weight", {8, 16}));
  EXPECT_TRUE(has(net, "model.layers.1.self_attn.v_proj.weight", {8, 16}));
  EXPECT_TRUE(has(net, "model.layers.1.self_attn.o_proj.weight", {16, 16}));
  EXPECT_TRUE(has(net, "model.layers.1.post_attention_layernorm.weight", {16}));
  EXPECT_TRUE(has(net, "model.layers.1.mlp.gate_proj.weight", {24, 16}));
  EXPECT_TRUE(has(net, "model.layers.1.mlp.up_proj.weight", {24, 16}));
  EXPECT_TRUE(has(net, "model.layers.1.mlp.down_proj.weight", {16, 24}));
  EXPECT_TRUE(has(net, "model.norm.weight", {16}));
  EXPECT_TRUE(has(net, "lm_head.weight", {50, 16}));
}

TEST(Llama, Learns) {
  Llama net(small_llama);
  expect_to_learn_tokens(net);
}

TEST(Llama, ATokenSeesOnlyThoseBeforeIt) {
  Llama net(small_llama);
  expect_causal(net);
}

// Products of queries and keys depend only on the distance of their tokens.
TEST(Llama, PositionsAreRelative) {
  const auto angles = torch::arange(9, torch::kDouble).unsqueeze(1) * torch::tensor({1.0, 0.1});
  const torch::Tensor rotary = torch::stack({angles.cos(), angles.sin()});
  const auto turned = [&](const torch::Tensor& x) {
    return LlamaAttentionImpl::rotated(x.expand({9, 4}), rotary);
  };
  const torch::Tensor q = torch::randn({4}, torch::kDouble), k = torch::randn({4}, torch::kDouble);
  const torch::Tensor products = turned(q).matmul(turned(k).t());
  for (const std::int64_t distance : {-3, 0, 5}) {
    const torch::Tensor equal = products.diagonal(distance);
    EXPECT_LT((equal - equal[0]).abs().max().item<double>(), 1e-12) << distance;
  }
  EXPECT_GT((products[0][0] - products[0][5]).abs().item<double>(), 1e-3);
}

TEST(Llama, RefusesHeadsThatDoNotFit) {
  EXPECT_THROW(Llama({.vocabulary = 9, .heads = 7}), c10::Error);
  EXPECT_THROW(Llama({.vocabulary = 9, .heads = 9, .kv_heads = 2}), c10::Error);
}

TEST(Vit, HasTheParametersOfVitB16) {
  const Vit net({});
  EXPECT_EQ(parameters_of(net), 86'567'656);
  EXPECT_EQ(net.named_parameters().size(), 152u);
}

const VitOptions small_vit{
    .image = 32, .patch = 4, .layers = 2, .heads = 4, .width = 32, .hidden = 64, .classes = 10};

TEST(Vit, Learns) {
  Vit net(small_vit);
  const torch::Tensor images = torch::randn({4, 3, 32, 32}), targets = torch::tensor({1, 7, 7, 9});
  EXPECT_EQ(net.forward(images).abs().max().item<float>(), 0) << "as torchvision's, at first";
  {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : net.heads->parameters()) parameter.normal_();
  }
  const torch::Tensor logits = net.forward(images);
  ASSERT_EQ(logits.sizes(), (std::vector<std::int64_t>{4, 10}));
  expect_gradients(net, logits, targets);
}

TEST(Vit, RefusesSizesThatDoNotFit) {
  EXPECT_THROW(Vit({.heads = 7}), c10::Error);
  EXPECT_THROW(Vit({.image = 32, .patch = 5}), c10::Error);
}

}  // namespace
