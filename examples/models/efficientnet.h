// EfficientNet B0 to B7 (Tan and Le, 2019), with torchvision's names and, for the same seed,
// initial weights.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "examples/models/layers.h"

struct EfficientNetOptions {
  double width = 1;  // Factor on channels.
  double depth = 1;  // Factor on the blocks of each stage.
  double dropout = 0.2;
  double stochastic_depth = 0.2;  // Probability of skipping the last block; less for earlier ones.
  std::int64_t classes = 1000;
  MakeNorm norm = batch_norm;
};

// A multiple of 8 that is at most a tenth below `channels` times `factor`.
inline std::int64_t scaled_channels(std::int64_t channels, double factor) {
  const double wanted = static_cast<double>(channels) * factor;
  const auto rounded = std::max<std::int64_t>(8, static_cast<std::int64_t>(wanted + 4) / 8 * 8);
  return static_cast<double>(rounded) < 0.9 * wanted ? rounded + 8 : rounded;
}

// Convolution that keeps sizes at stride 1, its norm, and SiLU if `activated`.
inline Layers convolution(torch::nn::Conv2dOptions options, const MakeNorm& norm,
                          bool activated = true) {
  Layers layers;
  options.padding((options.kernel_size()->at(0) - 1) / 2).bias(false);
  layers->push_back(torch::nn::Conv2d(options));
  layers->push_back(norm(options.out_channels()));
  if (activated) layers->push_back(torch::nn::SiLU());
  return layers;
}

// Scales each channel by a factor in [0, 1], computed from all channels' means.
struct SqueezeExcitationImpl : torch::nn::Module {
  SqueezeExcitationImpl(std::int64_t channels, std::int64_t squeezed)
      : fc1(torch::nn::Conv2dOptions(channels, squeezed, 1)),
        fc2(torch::nn::Conv2dOptions(squeezed, channels, 1)) {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor means = torch::adaptive_avg_pool2d(x, {1, 1});
    return torch::sigmoid(fc2(torch::silu(fc1(means)))) * x;
  }

  torch::nn::Conv2d fc1;
  torch::nn::Conv2d fc2;
};
TORCH_MODULE(SqueezeExcitation);

struct MBConvOptions {
  double expand;  // Channels inside the block / input channels.
  std::int64_t kernel, stride, in, out;
};

// Expands channels, convolves each one separately, weighs and projects them. Adds the input if
// shapes allow. In training, a sample may randomly skip the block.
struct MBConvImpl : torch::nn::Module {
  MBConvImpl(const MBConvOptions& options, double drop, const MakeNorm& norm)
      : residual(options.stride == 1 && options.in == options.out), drop_probability(drop) {
    using torch::nn::Conv2dOptions;
    const std::int64_t inside = scaled_channels(options.in, options.expand);
    if (inside != options.in)
      block->push_back(convolution(Conv2dOptions(options.in, inside, 1), norm));
    block->push_back(convolution(
        Conv2dOptions(inside, inside, options.kernel).stride(options.stride).groups(inside), norm));
    block->push_back(SqueezeExcitation(inside, std::max<std::int64_t>(1, options.in / 4)));
    block->push_back(convolution(Conv2dOptions(inside, options.out, 1), norm, /*activated=*/false));
    register_module("block", block);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = block->forward(x);
    return residual ? stochastic_depth(y).add_(x) : y;
  }

  const bool residual;
  const double drop_probability;
  Layers block;

 private:
  torch::Tensor stochastic_depth(const torch::Tensor& x) const {
    if (!is_training() || drop_probability == 0) return x;
    const double kept = 1 - drop_probability;
    return x * torch::empty({x.size(0), 1, 1, 1}, x.options()).bernoulli_(kept).div_(kept);
  }
};
TORCH_MODULE(MBConv);

struct EfficientNetImpl : LayersImpl {
  explicit EfficientNetImpl(const EfficientNetOptions& options) {
    const std::int64_t channels = 4 * scaled_channels(320, options.width);
    push_back("features", features(options, channels));
    push_back("avgpool", torch::nn::AdaptiveAvgPool2d(1));
    push_back("flatten", torch::nn::Flatten());
    Layers classifier;
    classifier->push_back(torch::nn::Dropout(options.dropout));
    classifier->push_back(torch::nn::Linear(channels, options.classes));
    push_back("classifier", classifier);
    for (const auto& module : modules(/*include_self=*/false)) initialize(*module);
  }

 private:
  static Layers features(const EfficientNetOptions& options, std::int64_t last_channels) {
    struct Stage {
      MBConvOptions block;  // First block.
      int blocks;
    };
    constexpr std::array stages{Stage{{1, 3, 1, 32, 16}, 1},  Stage{{6, 3, 2, 16, 24}, 2},
                                Stage{{6, 5, 2, 24, 40}, 2},  Stage{{6, 3, 2, 40, 80}, 3},
                                Stage{{6, 5, 1, 80, 112}, 3}, Stage{{6, 5, 2, 112, 192}, 4},
                                Stage{{6, 3, 1, 192, 320}, 1}};
    const auto blocks_of = [&](const Stage& stage) {
      return static_cast<int>(std::ceil(stage.blocks * options.depth));
    };
    int all_blocks = 0;
    for (const Stage& stage : stages) all_blocks += blocks_of(stage);

    Layers layers;
    const std::int64_t first = scaled_channels(32, options.width);
    layers->push_back(convolution(torch::nn::Conv2dOptions(3, first, 3).stride(2), options.norm));
    int index = 0;
    for (const Stage& stage : stages) {
      MBConvOptions block = stage.block;
      block.in = scaled_channels(block.in, options.width);
      block.out = scaled_channels(block.out, options.width);
      Layers blocks;
      for (int i = 0; i < blocks_of(stage); ++i, ++index) {
        blocks->push_back(
            MBConv(block, options.stochastic_depth * index / all_blocks, options.norm));
        block.stride = 1;
        block.in = block.out;
      }
      layers->push_back(blocks);
    }
    layers->push_back(
        convolution(torch::nn::Conv2dOptions(last_channels / 4, last_channels, 1), options.norm));
    return layers;
  }

  static void initialize(torch::nn::Module& module) {
    namespace init = torch::nn::init;
    if (auto* conv = module.as<torch::nn::Conv2d>()) {
      init::kaiming_normal_(conv->weight, 0, torch::kFanOut);
      if (conv->bias.defined()) init::zeros_(conv->bias);
    } else if (auto* linear = module.as<torch::nn::Linear>()) {
      const double range = 1 / std::sqrt(static_cast<double>(linear->options.out_features()));
      init::uniform_(linear->weight, -range, range);
      init::zeros_(linear->bias);
    }
  }
};
TORCH_MODULE(EfficientNet);

// B0 to B7, by `size`. Images [N, 3, height, width] to logits [N, classes]. With 1000 classes B0
// has 5,288,548 parameters, B7 66,347,960.
inline EfficientNet efficientnet_b(int size, std::int64_t classes = 1000) {
  struct Scale {
    double width, depth, dropout;
  };
  constexpr std::array scales{Scale{1.0, 1.0, 0.2}, Scale{1.0, 1.1, 0.2}, Scale{1.1, 1.2, 0.3},
                              Scale{1.2, 1.4, 0.3}, Scale{1.4, 1.8, 0.4}, Scale{1.6, 2.2, 0.4},
                              Scale{1.8, 2.6, 0.5}, Scale{2.0, 3.1, 0.5}};
  TORCH_CHECK(size >= 0 && size <= 7, "there is no EfficientNet B", size);
  const Scale scale = scales.at(static_cast<std::size_t>(size));
  EfficientNetOptions options{
      .width = scale.width, .depth = scale.depth, .dropout = scale.dropout, .classes = classes};
  if (size >= 5)
    options.norm = [](std::int64_t channels) {
      return torch::nn::AnyModule(torch::nn::BatchNorm2d(
          torch::nn::BatchNorm2dOptions(channels).eps(0.001).momentum(0.01)));
    };
  return EfficientNet(options);
}
