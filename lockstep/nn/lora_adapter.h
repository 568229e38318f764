// The two small matrices that LoRA trains beside a Linear's weight (lora.h).

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/nn/lora.h"

namespace lockstep::nn {

class LoraAdapter {
 public:
  // First values are PEFT's: those of a Linear, and zeros, so that nothing changes at first.
  LoraAdapter(const torch::nn::LinearOptions& layer, const at::Tensor& weight,
              const LoraOptions& options);

  // scale * B(A(dropout(input)))
  at::Tensor forward(const at::Tensor& input, bool is_training) const;

  // What a merge adds to the layer's weight: scale * B A.
  at::Tensor delta() const;

  // Under PEFT's names.
  std::vector<std::pair<std::string, torch::nn::Linear>> matrices() const {
    return {{"lora_A", a_}, {"lora_B", b_}};
  }

 private:
  const double scale_;
  const double dropout_;
  torch::nn::Linear a_;  // [rank, in_features]
  torch::nn::Linear b_;  // [out_features, rank]
};

}  // namespace lockstep::nn
