// Sequences of layers with torchvision's names, for its weights. Every batch norm is in a
// Sequential, where lockstep::convert_sync_batchnorm() can replace it. A typed member cannot be
// replaced, because forward() is not virtual.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <optional>

// A torch::nn::Sequential that can be in another one: forward() is not a template. Add layers with
// push_back(), one at a time: GCC evaluates Layers(a(), b()) from the right, and weights would
// differ from Python's for the same seed.
struct LayersImpl : torch::nn::SequentialImpl {
  torch::Tensor forward(const torch::Tensor& x) { return SequentialImpl::forward(x); }

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = {}) const override {
    return torch::nn::Module::clone(device);
  }
};
TORCH_MODULE(Layers);

using MakeNorm = std::function<torch::nn::AnyModule(std::int64_t channels)>;

inline torch::nn::AnyModule batch_norm(std::int64_t channels) {
  return torch::nn::AnyModule(torch::nn::BatchNorm2d(channels));
}
