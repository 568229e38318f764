// A small convolutional network for square images of 28 or 32 pixels.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

struct Cnn : torch::nn::Module {
  // `size`: width and height, a multiple of 4.
  Cnn(std::int64_t channels, std::int64_t size, std::int64_t classes)
      : conv1(torch::nn::Conv2dOptions(channels, 32, 3).padding(1)),
        conv2(torch::nn::Conv2dOptions(32, 64, 3).padding(1)),
        linear1(64 * (size / 4) * (size / 4), 512),
        linear2(512, classes) {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("linear1", linear1);
    register_module("linear2", linear2);
  }

  // Images [N, channels, size, size] to logits [N, classes].
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv1(x)), 2);
    x = torch::max_pool2d(torch::relu(conv2(x)), 2);
    return linear2(torch::relu(linear1(x.flatten(1))));
  }

  torch::nn::Conv2d conv1;
  torch::nn::Conv2d conv2;
  torch::nn::Linear linear1;
  torch::nn::Linear linear2;
};
