// Small layers for tests of pipelines, with the same weights on all ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <map>
#include <string>

#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::test::small_layers {

inline constexpr std::int64_t width = 6;

// Threads of one process share LibTorch's random generator, so weights depend on a number instead.
inline void fill(torch::nn::Module& module, int number) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : module.parameters())
    parameter.copy_(
        torch::sin(torch::arange(parameter.numel()) * 0.7 + number++).view_as(parameter) * 0.4);
}

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int number) {
    register_module("linear", linear);
    fill(*this, number);
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + torch::tanh(linear(x)); }

  torch::nn::Linear linear{width, width};
};
TORCH_MODULE(Block);

inline LayerList blocks(int count) {
  LayerList layers;
  for (int i = 0; i < count; ++i) layers.add("h." + std::to_string(i), [i] { return Block(i); });
  return layers;
}

inline torch::Tensor rows(std::int64_t count, int seed = 0) {
  return torch::cos(torch::arange(count * width) * 0.3 + seed).view({count, width});
}

using Gradients = std::map<std::string, torch::Tensor>;

inline Gradients gradients_of(const NamedTensors& parameters) {
  Gradients gradients;
  for (const auto& [name, parameter] : parameters)
    if (parameter.grad().defined()) gradients[name] = parameter.grad().clone();
  return gradients;
}

inline void forget_gradients(const Pipeline& pipeline) {
  for (const auto& parameter : pipeline.parameters()) parameter.mutable_grad() = torch::Tensor();
}

inline void expect_equal(const Gradients& gradients, const Gradients& expected) {
  for (const auto& [name, gradient] : gradients)
    EXPECT_TRUE(torch::equal(gradient, expected.at(name)))
        << name << " differs by " << (gradient - expected.at(name)).abs().max().item<double>();
}

inline void expect_close(const Gradients& gradients, const Gradients& expected) {
  for (const auto& [name, gradient] : gradients)
    EXPECT_TRUE(torch::allclose(gradient, expected.at(name), 1e-5, 1e-6)) << name << "\n"
                                                                          << gradient << "\n"
                                                                          << expected.at(name);
}

struct EmbedImpl : torch::nn::Module {
  EmbedImpl() {
    register_module("table", table);
    fill(*this, 3);
  }
  torch::Tensor forward(const torch::Tensor& tokens) { return table(tokens); }
  torch::nn::Embedding table{11, width};
};
TORCH_MODULE(Embed);

struct HeadImpl : torch::nn::Module {
  HeadImpl() {
    register_module("linear", linear);
    fill(*this, 4);
  }
  torch::Tensor forward(const torch::Tensor& x) { return linear(x); }
  torch::nn::Linear linear{torch::nn::LinearOptions(width, 11).bias(false)};
};
TORCH_MODULE(Head);

inline LayerList language_model(int depth = 2) {
  LayerList layers;
  layers.add("embed", [] { return Embed(); });
  for (int i = 0; i < depth; ++i) layers.add("h." + std::to_string(i), [i] { return Block(i); });
  layers.add("head", [] { return Head(); });
  layers.tie("head.linear.weight", "embed.table.weight");
  return layers;
}

inline torch::Tensor tokens() { return (torch::arange(16) * 7 % 11).view({4, 4}); }

inline torch::Tensor next_token(const torch::Tensor& logits, const Microbatch& part) {
  return torch::cross_entropy_loss(logits.flatten(0, 1), part.of(tokens()).flatten());
}

}  // namespace lockstep::test::small_layers
