// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <torch/nn/init.h>

#include <cmath>
#include <ostream>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/nn/cut.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/linear_adapter.h"
#include "lockstep/nn/products.h"
#include "lockstep/tensor/differentiable.h"

namespace lockstep::nn {

LinearImpl::LinearImpl(const torch::nn::LinearOptions& linear) : options(linear) { reset(); }

void LinearImpl::reset() {
  require(!adapter_,
          "a Linear with a LoRA adapter cannot be cloned: call merge() or remove() first");
  weight =
      register_parameter("weight", torch::empty({options.out_features(), options.in_features()}));
  bias = register_parameter(
      "bias", options.bias() ? torch::empty({options.out_features()}) : torch::Tensor(),
      /*requires_grad=*/options.bias());
  reset_parameters();
}

void LinearImpl::reset_parameters() {
  torch::nn::init::kaiming_uniform_(weight, std::sqrt(5));
  if (!bias.defined()) return;
  const double bound = 1 / std::sqrt(static_cast<double>(options.in_features()));
  torch::nn::init::uniform_(bias, -bound, bound);
}

void LinearImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "lockstep::nn::Linear(in_features=" << options.in_features()
         << ", out_features=" << options.out_features() << ", bias=" << options.bias();
  print_end(stream);
}

torch::Tensor LinearImpl::forward(const torch::Tensor& input) {
  const auto take = [&](Placement placement, std::int64_t width) {
    require_width(input, width);
    if (cut() && placement.is_whole()) compare_whole(input);
  };
  if (!cut()) {
    take(replicated, options.in_features());
    return naming_layer([&] { return whole(input); });
  }
  if (const auto* const style = std::get_if<ColwiseParallel>(&cut()->style)) {
    take(style->input, options.in_features());
    return naming_layer([&] { return colwise(input, *style); });
  }
  const auto& style = std::get<RowwiseParallel>(cut()->style);
  take(style.input, style.input.is_whole() ? options.in_features() : weight.size(1));
  return naming_layer([&] { return rowwise(input, style); });
}

torch::Tensor LinearImpl::whole(const torch::Tensor& input) const {
  torch::Tensor output = at::linear(input, weight, bias);
  return adapter_ ? output + adapter_->forward(input, is_training()) : output;
}

void LinearImpl::adapt(std::shared_ptr<LinearAdapter> adapter) {
  if (adapter_)
    for (const auto& [name, matrix] : adapter_->matrices()) unregister_module(name);
  adapter_ = std::move(adapter);
  if (adapter_)
    for (const auto& [name, matrix] : adapter_->matrices()) register_module(name, matrix);
}

torch::Tensor LinearImpl::colwise(const torch::Tensor& input, const ColwiseParallel& style) const {
  const torch::Tensor output = style.input.is_whole()
                                   ? product_of_rows(input, weight, bias, *cut())
                                   : at::linear(enter(input, style.input, *cut()), weight, bias);
  return style.output.is_whole()
             ? gather_from_parallel_region(output, cut()->group, -1, label_of(*cut()))
             : output;
}

// Adds the bias once, after the sum.
torch::Tensor LinearImpl::rowwise(const torch::Tensor& input, const RowwiseParallel& style) const {
  const torch::Tensor part =
      style.input.is_whole() ? scatter_to_parallel_region(input, cut()->group, -1, label_of(*cut()))
                             : input;
  if (style.output.is_whole()) return product_of_columns(part, weight, bias, *cut());
  const torch::Tensor output = leave(at::linear(part, weight), style.output, *cut());
  return bias.defined() ? output + for_parts(bias, "bias", *cut()) : output;
}

std::string LinearImpl::mismatch(const ParallelStyle& style, int ranks) const {
  if (adapter_) return "it has a LoRA adapter";
  if (const auto* const colwise = std::get_if<ColwiseParallel>(&style)) {
    if (colwise->segments > 1 && (colwise->output.is_whole() || colwise->uneven))
      return "an output of several segments is neither gathered nor cut unevenly";
    if (!colwise->output.is_whole() && colwise->output != sharded(-1))
      return "its output is sharded(-1) or replicated";
    if (colwise->heads > 0 && options.out_features() % (colwise->segments * colwise->heads) != 0)
      return "out_features " + std::to_string(options.out_features()) + " are not those of " +
             std::to_string(colwise->segments) + " times " + std::to_string(colwise->heads) +
             " heads";
    if (colwise->heads > 0) return mismatch_of("heads", colwise->heads, 1, ranks);
    return colwise->uneven
               ? ""
               : mismatch_of("out_features", options.out_features(), colwise->segments, ranks);
  }
  if (const auto* const rowwise = std::get_if<RowwiseParallel>(&style)) {
    if (!rowwise->input.is_whole() && rowwise->input != sharded(-1))
      return "its input is sharded(-1) or replicated";
    return mismatch_of("in_features", options.in_features(), 1, ranks);
  }
  return cannot_cut(style, "Linear");
}

Layouts LinearImpl::cut_parameters() {
  const ProcessGroup& group = cut()->group;
  const auto* const colwise = std::get_if<ColwiseParallel>(&cut()->style);
  if (colwise == nullptr) return {{"weight", cut_parameter(weight, 1, 1, group)}};
  Layouts layouts{{"weight", cut_parameter(weight, 0, colwise->segments, group)}};
  if (bias.defined()) layouts.emplace("bias", cut_parameter(bias, 0, colwise->segments, group));
  return layouts;
}

}  // namespace lockstep::nn
