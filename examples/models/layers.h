// What the convolutional models here are built from: layers in a row, under the names that
// torchvision gives them, so that its weights can be loaded.
//
// A layer in a torch::nn::Sequential can be replaced by one of another type, which a typed member
// cannot: forward() is not virtual. So every batch norm here lies in one, and
// lockstep::convert_sync_batchnorm() finds it; or a model is made with another `norm` at once.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <optional>

// A torch::nn::Sequential that can be in another one, as its forward() is no template. Layers are
// put in with push_back(), one at a time: of Layers(a(), b()) GCC makes b first, and weights would
// not be the ones that Python draws from the same seed.
struct LayersImpl : torch::nn::SequentialImpl {
  torch::Tensor forward(const torch::Tensor& x) { return SequentialImpl::forward(x); }

  // Throws: Sequential's own would forget the names, and what a derived class adds.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = {}) const override {
    return torch::nn::Module::clone(device);
  }
};
TORCH_MODULE(Layers);

// Makes the normalisation of so many channels.
using MakeNorm = std::function<torch::nn::AnyModule(std::int64_t channels)>;

inline torch::nn::AnyModule batch_norm(std::int64_t channels) {
  return torch::nn::AnyModule(torch::nn::BatchNorm2d(channels));
}
