// The two small matrices that LoRA trains for the weight of a Linear (lora.h).

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/nn/linear_adapter.h"
#include "lockstep/toolkit/lora/lora.h"

namespace lockstep::lora {

class LoraAdapter final : public nn::LinearAdapter {
 public:
  // Initial values are PEFT's: A as a Linear's, B zeros, so results do not change at first.
  LoraAdapter(const torch::nn::LinearOptions& layer, const at::Tensor& weight,
              const LoraOptions& options);

  // scale * B(A(dropout(input)))
  at::Tensor forward(const at::Tensor& input, bool is_training) const override;

  // Added to the weight by a merge: scale * B A.
  at::Tensor delta() const;

  // Under PEFT's names.
  std::vector<std::pair<std::string, torch::nn::Linear>> matrices() const override {
    return {{"lora_A", a_}, {"lora_B", b_}};
  }

 private:
  const double scale_;
  const double dropout_;
  torch::nn::Linear a_;  // [rank, in_features]
  torch::nn::Linear b_;  // [out_features, rank]
};

}  // namespace lockstep::lora
