// SPDX-License-Identifier: Apache-2.0
#include "lockstep/prune/module_cut.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::prune {
namespace {

using torch::nn::Module;

void require_indices(const ChannelCut& cut, const at::Tensor& tensor) {
  const bool has_dim = cut.dim >= 0 && cut.dim < tensor.dim();
  const bool fits = has_dim && !cut.kept.empty() &&
                    std::is_sorted(cut.kept.begin(), cut.kept.end()) && cut.kept.front() >= 0 &&
                    cut.kept.back() < tensor.size(cut.dim);
  require(fits, [&] {
    return "pruning: the plan is of another model: it keeps channels of " + cut.tensor +
           " that this does not have";
  });
}

void require_unused(const std::string& name, const at::Tensor& tensor) {
  require(
      !tensor.requires_grad() || torch::autograd::impl::try_get_grad_accumulator(tensor) == nullptr,
      [&] {
        return "pruning: " + name +
               " is in use: prune before DistributedDataParallel is made, or after its end, and "
               "outside of a pass";
      });
}

// --- Options of layers ---------------------------------------------------------------------------

// A depthwise convolution keeps the number of filters of a group; other groups keep their number.
template <class Conv>
bool adopt_conv(Module& module) {
  auto* const conv = module.as<Conv>();
  if (conv == nullptr) return false;
  auto& options = conv->options;
  const bool transposed = options.transposed();
  const std::int64_t rows = conv->weight.size(0), columns = conv->weight.size(1);
  if (options.groups() > 1 && options.groups() == options.in_channels() && !transposed)
    options.groups(rows / (options.out_channels() / options.groups()));
  options.in_channels(transposed ? rows : columns * options.groups());
  options.out_channels(transposed ? columns * options.groups() : rows);
  return true;
}

template <class Linear>
bool adopt_linear(Module& module) {
  auto* const linear = module.as<Linear>();
  if (linear == nullptr) return false;
  linear->options.out_features(linear->weight.size(0)).in_features(linear->weight.size(1));
  return true;
}

template <class Norm>
bool adopt_norm(Module& module) {
  auto* const norm = module.as<Norm>();
  if (norm == nullptr) return false;
  const at::Tensor& sized = norm->weight.defined() ? norm->weight : norm->running_mean;
  if (sized.defined()) norm->options.num_features(sized.size(0));
  return true;
}

template <class Embedding>
bool adopt_embedding(Module& module) {
  auto* const embedding = module.as<Embedding>();
  if (embedding == nullptr) return false;
  embedding->options.embedding_dim(embedding->weight.size(1));
  return true;
}

void adopt(Module& module) {
  using namespace torch::nn;
  adopt_conv<Conv1dImpl>(module) || adopt_conv<Conv2dImpl>(module) ||
      adopt_conv<Conv3dImpl>(module) || adopt_conv<ConvTranspose1dImpl>(module) ||
      adopt_conv<ConvTranspose2dImpl>(module) || adopt_conv<ConvTranspose3dImpl>(module) ||
      adopt_linear<torch::nn::LinearImpl>(module) || adopt_linear<nn::LinearImpl>(module) ||
      adopt_norm<BatchNorm1dImpl>(module) || adopt_norm<BatchNorm2dImpl>(module) ||
      adopt_norm<BatchNorm3dImpl>(module) || adopt_norm<SyncBatchNormImpl>(module) ||
      adopt_embedding<torch::nn::EmbeddingImpl>(module) ||
      adopt_embedding<nn::EmbeddingImpl>(module);
}

}  // namespace

// --- Tensors -------------------------------------------------------------------------------------

void TensorCut::add(std::int64_t dim, const std::vector<std::int64_t>& kept) {
  kept_.emplace_back(dim, at::tensor(kept, at::kLong).to(tensor_.device()));
}

at::Tensor TensorCut::left_of(const at::Tensor& values) const {
  at::Tensor left = values;
  for (const auto& [dim, kept] : kept_) left = left.index_select(dim, kept);
  return left.contiguous(values.suggest_memory_format());
}

ModuleCut::ModuleCut(Module& module, const std::vector<ChannelCut>& cuts) : module_(module) {
  std::map<std::string, at::Tensor> held;
  for (auto& [name, tensor] : named_tensors(module)) held.emplace(name, tensor);
  std::map<std::string, std::size_t> known;
  for (const ChannelCut& cut : cuts) {
    const auto found = held.find(cut.tensor);
    require(found != held.end(), [&] {
      return "pruning: the model has no tensor " + cut.tensor + ", which the plan cuts";
    });
    require_indices(cut, found->second);
    require_unused(cut.tensor, found->second);
    const auto [index, is_new] = known.emplace(cut.tensor, tensors_.size());
    if (is_new) tensors_.emplace_back(found->second);
    tensors_[index->second].add(cut.dim, cut.kept);
  }
}

void ModuleCut::apply() const {
  const at::NoGradGuard no_grad;
  for (const TensorCut& cut : tensors_) {
    at::Tensor tensor = cut.tensor();
    tensor.mutable_grad().reset();
    tensor.set_data(cut.left_of(cut.before()));
  }
  adopt_sizes();
}

void ModuleCut::undo() const {
  for (const TensorCut& cut : tensors_) cut.tensor().set_data(cut.before());
  adopt_sizes();
}

void ModuleCut::adopt_sizes() const {
  std::set<const at::TensorImpl*> cut;
  for (const TensorCut& tensor : tensors_) cut.insert(tensor.tensor().unsafeGetTensorImpl());
  std::vector<Module*> modules{&module_};  // The root itself may lie on the stack.
  for (const auto& child : module_.modules(/*include_self=*/false)) modules.push_back(child.get());
  for (Module* const module : modules) {
    const auto is_cut = [&](const at::Tensor& tensor) {
      return cut.contains(tensor.unsafeGetTensorImpl());
    };
    const auto parameters = module->parameters(/*recurse=*/false);
    const auto buffers = module->buffers(/*recurse=*/false);
    if (std::any_of(parameters.begin(), parameters.end(), is_cut) ||
        std::any_of(buffers.begin(), buffers.end(), is_cut))
      adopt(*module);
  }
}

// --- Optimizers ----------------------------------------------------------------------------------

void require_readable_state(torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<ShardedOptimizer*>(&optimizer) != nullptr)
    throw Error(Fault::unsupported,
                "pruning: the optimizer's state is spread over ranks: prune first, and make the "
                "optimizer afterwards");
  make_param_state(optimizer);
}

void ModuleCut::cut_state(torch::optim::Optimizer& optimizer) const {
  const at::NoGradGuard no_grad;
  for (const TensorCut& cut : tensors_) {
    const auto slot = optimizer.state().find(cut.tensor().unsafeGetTensorImpl());
    if (slot == optimizer.state().end() || !slot->second) continue;
    for (const auto& [name, value] : parts_of(*slot->second).tensors)
      if (value->defined() && value->sizes() == cut.before().sizes()) *value = cut.left_of(*value);
  }
}

}  // namespace lockstep::prune
