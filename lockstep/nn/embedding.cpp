// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/functional/embedding.h>
#include <torch/nn/init.h>

#include <ostream>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/nn/cut.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/products.h"
#include "lockstep/tensor/differentiable.h"

namespace lockstep::nn {

EmbeddingImpl::EmbeddingImpl(torch::nn::EmbeddingOptions embedding)
    : options(std::move(embedding)) {
  reset();
}

void EmbeddingImpl::reset() {
  if (options.padding_idx() && *options.padding_idx() < 0)
    options.padding_idx(options.num_embeddings() + *options.padding_idx());
  if (!options._weight().defined()) {
    weight = register_parameter("weight",
                                torch::empty({options.num_embeddings(), options.embedding_dim()}));
    reset_parameters();
    return;
  }
  require(options._weight().sizes() ==
              at::IntArrayRef({options.num_embeddings(), options.embedding_dim()}),
          "lockstep::nn::Embedding: the given weight has another shape than the options");
  weight = register_parameter("weight", options._weight());
}

void EmbeddingImpl::reset_parameters() {
  torch::nn::init::normal_(weight);
  const torch::NoGradGuard no_grad;
  if (options.padding_idx()) weight[*options.padding_idx()].fill_(0);
}

void EmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "lockstep::nn::Embedding(num_embeddings=" << options.num_embeddings()
         << ", embedding_dim=" << options.embedding_dim();
  if (options.padding_idx()) stream << ", padding_idx=" << *options.padding_idx();
  print_end(stream);
}

torch::Tensor EmbeddingImpl::forward(const torch::Tensor& indices) {
  if (!cut())
    return torch::nn::functional::detail::embedding(indices, weight, options.padding_idx(),
                                                    options.max_norm(), options.norm_type(),
                                                    options.scale_grad_by_freq(), options.sparse());
  compare_whole(indices);
  if (const auto* const style = std::get_if<RowwiseParallel>(&cut()->style))
    return leave(looked_up(indices), style->output, *cut());
  const torch::Tensor part = at::embedding(weight, indices, options.padding_idx().value_or(-1));
  return std::get<ColwiseParallel>(cut()->style).output.is_whole()
             ? gather_from_parallel_region(part, cut()->group, -1, label_of(*cut()))
             : part;
}

// Rows of this rank's part, and zeros for other indices.
torch::Tensor EmbeddingImpl::looked_up(const torch::Tensor& indices) const {
  const Box& box = layouts().at("weight").boxes.list.at(0);
  const std::int64_t begin = box.offsets[0], rows = box.sizes[0];
  if (indices.numel() > 0) {
    const auto [least, most] = indices.aminmax();
    require(least.item<std::int64_t>() >= 0 && most.item<std::int64_t>() < options.num_embeddings(),
            [&, &lowest = least, &highest = most] {
              return cut()->name + ": indices " + std::to_string(lowest.item<std::int64_t>()) +
                     " to " + std::to_string(highest.item<std::int64_t>()) +
                     " are not all in a vocabulary of " + std::to_string(options.num_embeddings());
            });
  }
  if (rows == 0) {  // Defines a gradient, as on other ranks.
    auto shape = indices.sizes().vec();
    shape.push_back(options.embedding_dim());
    return at::zeros(shape, weight.options()) + weight.sum();
  }
  const torch::Tensor here = indices - begin;
  const torch::Tensor elsewhere = (here < 0).logical_or_(here >= rows);
  const std::int64_t padding = options.padding_idx().value_or(-1) - begin;
  return at::embedding(weight, here.masked_fill(elsewhere, 0),
                       options.padding_idx() && padding >= 0 && padding < rows ? padding : -1)
      .masked_fill(elsewhere.unsqueeze(-1), 0);
}

torch::Tensor EmbeddingImpl::as_linear(const torch::Tensor& input) const {
  require_width(input, weight.size(1));
  if (!cut()) return at::linear(input, weight);
  require(std::holds_alternative<RowwiseParallel>(cut()->style),
          [&] { return cut()->name + ": as_linear() of an Embedding that is cut by features"; });
  return product_of_rows(input, weight, {}, *cut());
}

std::string EmbeddingImpl::mismatch(const ParallelStyle& style, int ranks) const {
  if (options.max_norm() || options.scale_grad_by_freq() || options.sparse())
    return "an Embedding with max_norm, scale_grad_by_freq or sparse gradients cannot be cut";
  if (const auto* const rowwise = std::get_if<RowwiseParallel>(&style))
    return !rowwise->input.is_whole() && rowwise->input != sharded(-1)
               ? "its indices are whole on all ranks"
               : "";
  if (const auto* const colwise = std::get_if<ColwiseParallel>(&style)) {
    if (!colwise->input.is_whole()) return "its indices are whole on all ranks";
    if (colwise->segments != 1 || colwise->heads != 0)
      return "an Embedding has one segment, and no heads";
    return colwise->uneven
               ? ""
               : mismatch_of("embedding_dim", options.embedding_dim(), colwise->segments, ranks);
  }
  return cannot_cut(style, "Embedding");
}

Layouts EmbeddingImpl::cut_parameters() {
  const std::int64_t dim = std::holds_alternative<RowwiseParallel>(cut()->style) ? 0 : 1;
  return {{"weight", cut_parameter(weight, dim, 1, cut()->group)}};
}

}  // namespace lockstep::nn
