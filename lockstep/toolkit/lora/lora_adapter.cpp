// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/lora/lora_adapter.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>

namespace lockstep::lora {

LoraAdapter::LoraAdapter(const torch::nn::LinearOptions& layer, const at::Tensor& weight,
                         const LoraOptions& options)
    : scale_(options.alpha / static_cast<double>(options.rank)),
      dropout_(options.dropout),
      a_(torch::nn::LinearOptions(layer.in_features(), options.rank).bias(false)),
      b_(torch::nn::LinearOptions(options.rank, layer.out_features()).bias(false)) {
  for (auto [name, matrix] : matrices()) matrix->to(weight.device(), weight.scalar_type());
  const at::NoGradGuard no_grad;
  b_->weight.zero_();
}

at::Tensor LoraAdapter::forward(const at::Tensor& input, bool is_training) const {
  const at::Tensor kept = dropout_ > 0 ? at::dropout(input, dropout_, is_training) : input;
  return at::linear(at::linear(kept, a_->weight), b_->weight) * scale_;
}

at::Tensor LoraAdapter::delta() const {
  const at::NoGradGuard no_grad;
  return b_->weight.mm(a_->weight) * scale_;
}

}  // namespace lockstep::lora
