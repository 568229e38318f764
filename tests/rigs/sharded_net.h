// Test rig: a small net with all special cases of fully sharded modules.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/tensor/named_tensors.h"
#include "tests/rigs/known_numbers.h"

namespace lockstep::test {

inline constexpr std::int64_t vocabulary = 37, width = 260;

struct Block : torch::nn::Module {
  Block() {
    register_module("up", up);
    register_module("down", down);
    register_parameter("frozen", torch::ones({width}), /*requires_grad=*/false);
    unused = register_parameter("unused", torch::ones({5}));
  }

  torch::Tensor forward(const torch::Tensor& x, bool uses_all) {
    const torch::Tensor y = x + down->forward(torch::relu(up->forward(x)));
    return uses_all ? y + unused.sum() : y;
  }

  torch::nn::Linear up{width, 271};  // More than 256 KiB, and odd.
  torch::nn::Linear down{271, width};
  torch::Tensor unused;
};

// Tied weights, frozen and unused ones, and two types. Its sizes are not multiples of the ranks.
struct Net : torch::nn::Module {
  Net() {
    register_module("embedding", embedding);
    for (int i = 0; i < 3; ++i) blocks->push_back(std::make_shared<Block>());
    register_module("blocks", blocks);
    tied = register_parameter("tied", embedding->weight);
    scale = register_parameter("scale", torch::ones({vocabulary}, torch::kDouble));
    fill_in_its_types(*this);
  }

  torch::Tensor forward(const torch::Tensor& tokens, bool uses_all = false) {
    torch::Tensor x = embedding->forward(tokens);
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x, uses_all);
    return x.matmul(tied.t()).to(torch::kDouble) * scale;
  }

  torch::nn::Embedding embedding{vocabulary, width};
  torch::nn::ModuleList blocks;
  torch::Tensor tied, scale;
};

// Each once, though the tied weight has two names.
inline std::vector<torch::Tensor> parameters_of(const torch::nn::Module& net) {
  std::vector<torch::Tensor> parameters;
  for (const auto& [name, parameter] : named_parameters(net))
    if (name != "tied") parameters.push_back(parameter);
  return parameters;
}

inline torch::Tensor tokens(int seed) {
  return (torch::arange(24, torch::kLong) * (seed + 3)).remainder(vocabulary).view({4, 6});
}

inline torch::Tensor loss_of(const torch::Tensor& output) { return output.square().mean(); }

}  // namespace lockstep::test
