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
namespace {

void print_cut(std::ostream& stream, const std::optional<CutTo>& cut) {
  if (cut) stream << ", " << name_of(cut->style) << " over " << cut->group.size() << " ranks";
  stream << ')';
}

std::string misfit_of_norm(const ParallelStyle& style, const char* layer) {
  return std::holds_alternative<SequenceParallel>(style) ? "" : cannot_cut(style, layer);
}

}  // namespace

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
  print_cut(stream, cut_);
}

torch::Tensor LayerNormImpl::forward(const torch::Tensor& input) {
  const auto here = [&](const torch::Tensor& parameter, const char* what) {
    return cut_ ? for_parts(parameter, what, *cut_) : parameter;
  };
  return at::layer_norm(input, options.normalized_shape(), here(weight, "weight"),
                        here(bias, "bias"), options.eps());
}

std::string LayerNormImpl::misfit(const ParallelStyle& style, int /*ranks*/) const {
  return misfit_of_norm(style, "LayerNorm");
}

void LayerNormImpl::parallelize(const ParallelStyle& style, const ProcessGroup& group,
                                const std::string& name) {
  cut_ = CutTo{style, group, name};
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
  print_cut(stream, cut_);
}

torch::Tensor RMSNormImpl::forward(const torch::Tensor& input) {
  const torch::Tensor scale = cut_ ? for_parts(weight, "weight", *cut_) : weight;
  return at::rms_norm(input, options.normalized_shape,
                      scale.defined() ? std::optional(scale) : std::nullopt, options.eps);
}

std::string RMSNormImpl::misfit(const ParallelStyle& style, int /*ranks*/) const {
  return misfit_of_norm(style, "RMSNorm");
}

void RMSNormImpl::parallelize(const ParallelStyle& style, const ProcessGroup& group,
                              const std::string& name) {
  cut_ = CutTo{style, group, name};
}

}  // namespace lockstep::nn
