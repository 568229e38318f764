// ResNet-18 and -34 (He et al., 2015), with torchvision's names and, for the same seed, initial
// weights.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <array>
#include <string>

#include "examples/models/layers.h"

// Two convolutions, added to the input; `downsample` adapts its shape.
struct BasicBlockImpl : LayersImpl {
  BasicBlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride, const MakeNorm& norm) {
    using torch::nn::Conv2d;
    using torch::nn::Conv2dOptions;
    if (stride != 1 || in != out) {  // First: Python draws its weights first.
      downsample->push_back(Conv2d(Conv2dOptions(in, out, 1).stride(stride).bias(false)));
      downsample->push_back(norm(out));
    }
    push_back("conv1", Conv2d(Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false)));
    push_back("bn1", norm(out));
    push_back("relu", torch::nn::ReLU(torch::nn::ReLUOptions(/*inplace=*/true)));
    push_back("conv2", Conv2d(Conv2dOptions(out, out, 3).padding(1).bias(false)));
    push_back("bn2", norm(out));
    if (!downsample->is_empty()) register_module("downsample", downsample);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor residual = LayersImpl::forward(x);
    return torch::relu_(residual.add_(downsample->is_empty() ? x : downsample->forward(x)));
  }

  Layers downsample;
};
TORCH_MODULE(BasicBlock);

struct ResNetImpl : LayersImpl {
  // By stage.
  ResNetImpl(const std::array<int, 4>& blocks, std::int64_t classes, const MakeNorm& norm) {
    push_back("conv1", torch::nn::Conv2d(
                           torch::nn::Conv2dOptions(3, 64, 7).stride(2).padding(3).bias(false)));
    push_back("bn1", norm(64));
    push_back("relu", torch::nn::ReLU(torch::nn::ReLUOptions(/*inplace=*/true)));
    push_back("maxpool", torch::nn::MaxPool2d(torch::nn::MaxPool2dOptions(3).stride(2).padding(1)));
    std::int64_t in = 64;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const std::int64_t out = std::int64_t{64} << i;
      push_back("layer" + std::to_string(i + 1), stage(blocks[i], in, out, norm));
      in = out;
    }
    push_back("avgpool", torch::nn::AdaptiveAvgPool2d(1));
    push_back("flatten", torch::nn::Flatten());
    push_back("fc", torch::nn::Linear(in, classes));
    for (const auto& module : modules(/*include_self=*/false))
      if (auto* conv = module->as<torch::nn::Conv2d>())
        torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
  }

 private:
  static Layers stage(int blocks, std::int64_t in, std::int64_t out, const MakeNorm& norm) {
    Layers layers;
    layers->push_back(BasicBlock(in, out, /*stride=*/in == out ? 1 : 2, norm));
    for (int i = 1; i < blocks; ++i) layers->push_back(BasicBlock(out, out, 1, norm));
    return layers;
  }
};
TORCH_MODULE(ResNet);

// Images [N, 3, height, width] to logits [N, classes]. 11,689,512 parameters with 1000 classes.
inline ResNet resnet18(std::int64_t classes = 1000, const MakeNorm& norm = batch_norm) {
  return ResNet(std::array{2, 2, 2, 2}, classes, norm);
}

// As resnet18(); 21,797,672 parameters.
inline ResNet resnet34(std::int64_t classes = 1000, const MakeNorm& norm = batch_norm) {
  return ResNet(std::array{3, 4, 6, 3}, classes, norm);
}
