// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>
#include <torch/nn/init.h>

#include <ostream>
#include <utility>

#include "lockstep/nn/cut.h"
#include "lockstep/nn/layers.h"

namespace lockstep::nn {

LayerNormImpl::LayerNormImpl(torch::nn::LayerNormOptions norm) : options(std::move(norm)) {
  reset();
}

void LayerNormImpl::reset() {
  const bool affine = options.elementwise_affine();
  const auto made = [&] {
    return affine ? torch::empty(options.normalized_shape()) : torch::Tensor();
  };
  weight = register_parameter("weight", made(), /*requires_grad=*/affine);
  bias = register_parameter("bias", made(), /*requires_grad=*/affine);
  reset_parameters();
}

void LayerNormImpl::reset_parameters() {
  if (!weight.defined()) return;
  torch::nn::init::ones_(weight);
  torch::nn::init::zeros_(bias);
}

void LayerNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "lockstep::nn::LayerNorm("
         << at::IntArrayRef(options.normalized_shape()) << ", eps=" << options.eps()
         << ", elementwise_affine=" << options.elementwise_affine();
  print_end(stream);
}

torch::Tensor LayerNormImpl::forward(const torch::Tensor& input) {
  require_width(input, options.normalized_shape().back());
  const auto here = [&](const torch::Tensor& parameter, const char* what) {
    return cut() ? for_parts(parameter, what, *cut()) : parameter;
  };
  return naming_layer([&] {
    return at::layer_norm(input, options.normalized_shape(), here(weight, "weight"),
                          here(bias, "bias"), options.eps());
  });
}

std::string LayerNormImpl::mismatch(const ParallelStyle& style, int /*ranks*/) const {
  return mismatch_of_whole(style, "LayerNorm");
}

RMSNormImpl::RMSNormImpl(RMSNormOptions norm) : options(std::move(norm)) { reset(); }

void RMSNormImpl::reset() {
  weight = register_parameter(
      "weight",
      options.elementwise_affine ? torch::empty(options.normalized_shape) : torch::Tensor(),
      /*requires_grad=*/options.elementwise_affine);
  reset_parameters();
}

void RMSNormImpl::reset_parameters() {
  if (weight.defined()) torch::nn::init::ones_(weight);
}

void RMSNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "lockstep::nn::RMSNorm(" << at::IntArrayRef(options.normalized_shape)
         << ", eps=";
  if (options.eps)
    stream << *options.eps;
  else
    stream << "None";
  stream << ", elementwise_affine=" << options.elementwise_affine;
  print_end(stream);
}

torch::Tensor RMSNormImpl::forward(const torch::Tensor& input) {
  require_width(input, options.normalized_shape.back());
  const torch::Tensor scale = cut() ? for_parts(weight, "weight", *cut()) : weight;
  return naming_layer([&] {
    return at::rms_norm(input, options.normalized_shape,
                        scale.defined() ? std::optional(scale) : std::nullopt, options.eps);
  });
}

std::string RMSNormImpl::mismatch(const ParallelStyle& style, int /*ranks*/) const {
  return mismatch_of_whole(style, "RMSNorm");
}

}  // namespace lockstep::nn
