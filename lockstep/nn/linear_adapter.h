// A module whose result a LinearImpl adds to its own, such as LoRA's.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <utility>
#include <vector>

namespace lockstep::nn {

class LinearAdapter {
 public:
  virtual ~LinearAdapter() = default;

  virtual at::Tensor forward(const at::Tensor& input, bool is_training) const = 0;

  // The layer registers them under these names.
  virtual std::vector<std::pair<std::string, torch::nn::Linear>> matrices() const = 0;
};

}  // namespace lockstep::nn
