// A small model for tests on real and simulated CUDA devices.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

namespace lockstep::test {

// Has buffers and parameters of several sizes. A pass may skip one of them.
struct Net : torch::nn::Module {
  Net() {
    register_module("a", a);
    register_module("norm", norm);
    register_module("b", b);
    register_module("extra", extra);
    // Not random: threads share the generator.
    const torch::NoGradGuard no_grad;
    for (auto& each : parameters())
      each.copy_(torch::arange(each.numel()).view(each.sizes()).sin().mul(0.3));
  }
  torch::Tensor forward(const torch::Tensor& x, bool with_extra = true) {
    const torch::Tensor y = b(norm(a(x)).tanh());
    return with_extra ? y + extra(x) : y;
  }

  torch::nn::Linear a{6, 400};
  torch::nn::BatchNorm1d norm{400};
  torch::nn::Linear b{400, 300};  // 480 KB: reduced in place in CPU memory.
  torch::nn::Linear extra{6, 300};
};

// The samples of a rank and step.
inline torch::Tensor inputs(int rank, int step, at::Device device) {
  return torch::arange(30, torch::kFloat).view({5, 6}).add(7 * rank + 31 * step).sin().to(device);
}

}  // namespace lockstep::test
