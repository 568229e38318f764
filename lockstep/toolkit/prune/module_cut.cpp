// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/prune/module_cut.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <functional>
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

bool is_increasing(const std::vector<std::int64_t>& values) {
  return std::adjacent_find(values.begin(), values.end(), std::greater_equal<>()) == values.end();
}

void require_indices(const ChannelCut& cut, const at::Tensor& tensor) {
  const bool has_dim = cut.dim >= 0 && cut.dim < tensor.dim();
  const bool fits = has_dim && !cut.kept.empty() && is_increasing(cut.kept) &&
                    cut.kept.front() >= 0 && cut.kept.back() < tensor.size(cut.dim);
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

template <class... Layers>
struct LayerTypes {};

using SizedLayers =
    LayerTypes<torch::nn::Conv1dImpl, torch::nn::Conv2dImpl, torch::nn::Conv3dImpl,
               torch::nn::ConvTranspose1dImpl, torch::nn::ConvTranspose2dImpl,
               torch::nn::ConvTranspose3dImpl, torch::nn::LinearImpl, nn::LinearImpl,
               torch::nn::BatchNorm1dImpl, torch::nn::BatchNorm2dImpl, torch::nn::BatchNorm3dImpl,
               SyncBatchNormImpl, torch::nn::EmbeddingImpl, nn::EmbeddingImpl,
               torch::nn::PReLUImpl>;

template <class Use, class... Layers>
void visit_layer(Module& module, LayerTypes<Layers...>, const Use& use) {
  const auto visit = [&](auto* layer) {
    if (layer != nullptr) use(*layer);
    return layer != nullptr;
  };
  (visit(module.as<Layers>()) || ...);
}

// Depthwise convolutions keep the filters per group; others, the number of groups.
template <class Conv>
void adopt_conv(Conv& conv) {
  auto& options = conv.options;
  const bool transposed = options.transposed();
  const std::int64_t rows = conv.weight.size(0), columns = conv.weight.size(1);
  if (options.groups() > 1 && options.groups() == options.in_channels() && !transposed)
    options.groups(rows / (options.out_channels() / options.groups()));
  options.in_channels(transposed ? rows : columns * options.groups());
  options.out_channels(transposed ? columns * options.groups() : rows);
}

template <class Layer>
void adopt(Layer& layer) {
  auto& options = layer.options;
  if constexpr (requires { options.out_channels(); }) {
    adopt_conv(layer);
  } else if constexpr (requires { options.out_features(); }) {
    options.out_features(layer.weight.size(0)).in_features(layer.weight.size(1));
  } else if constexpr (requires { options.num_features(); }) {
    const at::Tensor& sized = layer.weight.defined() ? layer.weight : layer.running_mean;
    if (sized.defined()) options.num_features(sized.size(0));
  } else if constexpr (requires { options.embedding_dim(); }) {
    options.embedding_dim(layer.weight.size(1));
  } else {
    options.num_parameters(layer.weight.size(0));
  }
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
  add_layers();
}

void ModuleCut::apply() const {
  const at::NoGradGuard no_grad;
  for (const TensorCut& cut : tensors_) {
    at::Tensor tensor = cut.tensor();
    tensor.mutable_grad().reset();
    tensor.set_data(cut.left_of(cut.before()));
  }
  for (const CutLayer& layer : layers_) layer.adopt_sizes();
}

void ModuleCut::undo() const {
  for (const TensorCut& cut : tensors_) {
    at::Tensor tensor = cut.tensor();
    tensor.set_data(cut.before());
    tensor.mutable_grad() = cut.gradient_before();
  }
  for (const CutLayer& layer : layers_) layer.restore_sizes();
}

void ModuleCut::add_layers() {
  std::set<const at::TensorImpl*> cut;
  for (const TensorCut& tensor : tensors_) cut.insert(tensor.tensor().unsafeGetTensorImpl());
  const auto is_cut = [&](const at::Tensor& tensor) {
    return cut.contains(tensor.unsafeGetTensorImpl());
  };
  std::vector<Module*> modules{&module_};  // The root may be on the stack.
  for (const auto& child : module_.modules(/*include_self=*/false)) modules.push_back(child.get());
  for (Module* const module : modules) {
    const auto parameters = module->parameters(/*recurse=*/false);
    const auto buffers = module->buffers(/*recurse=*/false);
    if (std::none_of(parameters.begin(), parameters.end(), is_cut) &&
        std::none_of(buffers.begin(), buffers.end(), is_cut))
      continue;
    visit_layer(*module, SizedLayers{}, [&](auto& layer) {
      layers_.push_back(
          {.adopt_sizes = [&layer] { adopt(layer); },
           .restore_sizes = [&layer, before = layer.options] { layer.options = before; }});
    });
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
