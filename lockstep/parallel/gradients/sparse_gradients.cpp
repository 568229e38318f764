// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/sparse_gradients.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/parallel/gradients/finite_check.h"
#include "lockstep/parallel/gradients/stopwatch.h"
#include "lockstep/tensor/sparse_all_reduce.h"

namespace lockstep::parallel {
namespace {

template <class Layer>
void add_weight_of(const torch::nn::Module& module, std::vector<at::Tensor>& found) {
  const auto* const layer = dynamic_cast<const Layer*>(&module);
  if (layer != nullptr && layer->options.sparse() && layer->weight.requires_grad())
    found.push_back(layer->weight);
}

void add_weights_of(const torch::nn::Module& module, std::vector<at::Tensor>& found) {
  add_weight_of<torch::nn::EmbeddingImpl>(module, found);
  add_weight_of<torch::nn::EmbeddingBagImpl>(module, found);
}

}  // namespace

std::vector<at::Tensor> sparse_parameters(const torch::nn::Module& module,
                                          const std::vector<std::string>& names) {
  std::vector<at::Tensor> found;
  add_weights_of(module, found);
  for (const auto& layer : module.modules(/*include_self=*/false)) add_weights_of(*layer, found);
  const NamedTensors all = named_parameters(module);
  for (const std::string& name : names) {
    const auto named = std::ranges::find(all, name, &NamedTensors::value_type::first);
    require(named != all.end(),
            [&] { return "sparse_gradients: the module has no parameter '" + name + "'"; });
    if (named->second.requires_grad()) found.push_back(named->second);
  }
  for (const auto& [name, parameter] : all)
    for (const at::Tensor& sparse : found)
      if (parameter.is_same(sparse) && !parameter.is_cpu() && !parameter.is_meta())
        throw Error(Fault::unsupported, "sparse gradients are averaged in CPU memory only, and " +
                                            name + " is on " + parameter.device().str());
  return found;
}

SparseGradients::SparseGradients(const NamedTensors& parameters, std::vector<bool> is_sparse,
                                 const ProcessGroup& group, bool check_finite,
                                 std::unique_ptr<GradientSink> dense)
    : parameters_(parameters),
      is_sparse_(std::move(is_sparse)),
      group_(group),
      check_finite_(check_finite),
      dense_(std::move(dense)),
      taken_(parameters.size()) {}

void SparseGradients::assign(const BucketAssignment& assignment) {
  BucketAssignment dense;
  dense_bucket_.clear();
  for (const auto& indices : assignment) {
    if (is_sparse_[indices.front()]) {
      dense_bucket_.emplace_back();
      continue;
    }
    dense_bucket_.emplace_back(dense.size());
    dense.push_back(indices);
  }
  dense_->assign(dense);
}

bool SparseGradients::begin(bool early) {
  std::ranges::fill(taken_, at::Tensor());
  return dense_->begin(early);
}

Taken SparseGradients::take(std::size_t index, at::Tensor& gradient, const at::Tensor& incoming) {
  return is_sparse_[index] ? taken(index, gradient) : dense_->take(index, gradient, incoming);
}

Taken SparseGradients::take_left_out(std::size_t index, at::Tensor& gradient) {
  return is_sparse_[index] ? taken(index, gradient) : dense_->take_left_out(index, gradient);
}

Taken SparseGradients::taken(std::size_t index, const at::Tensor& gradient) {
  taken_[index] = gradient;
  if (!check_finite_ || !gradient.defined() || all_finite(gradient._values())) return Taken::fine;
  return Taken::non_finite;
}

void SparseGradients::start(std::size_t bucket) {
  if (const auto dense = dense_bucket_[bucket]) dense_->start(*dense);
}

void SparseGradients::finish(const PassReports& reports, double factor) {
  dense_->finish(reports, factor);
  const at::NoGradGuard no_grad;
  const Stopwatch watch(reduce_time_);
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (is_sparse_[i] && reports.used_by_any(i)) average(i, factor);
  std::ranges::fill(taken_, at::Tensor());
}

// Divides before adding, as PyTorch. An existing `.grad` remains the same tensor.
void SparseGradients::average(std::size_t index, double factor) const {
  const auto& [name, parameter] = parameters_[index];
  const at::Tensor& own = taken_[index];
  const at::Tensor mean =
      own.defined() ? own.div(group_.size()).coalesce() : empty_sparse(parameter);
  sparse_all_reduce(mean, ReduceOp::sum, group_, {.label = name});
  if (factor != 1) mean._values().mul_(factor);  // mean.mul_() would lose the coalesced flag.
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.defined())
    gradient.copy_(mean);
  else
    gradient = mean;
}

void SparseGradients::release() noexcept {
  std::ranges::fill(taken_, at::Tensor());
  dense_->release();
}

}  // namespace lockstep::parallel
