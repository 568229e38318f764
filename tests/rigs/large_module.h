// A module that exceeds the memory that tests leave to a rank.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

namespace lockstep::test {

// 96 MiB of weights, 4 MiB in each layer.
struct LargeModule : torch::nn::Module {
  LargeModule() {
    for (int i = 0; i < 24; ++i) layers->push_back(torch::nn::Linear(1024, 1024));
    register_module("layers", layers);
  }
  torch::Tensor forward(const torch::Tensor& x) { return x; }
  torch::nn::ModuleList layers;
};

}  // namespace lockstep::test
