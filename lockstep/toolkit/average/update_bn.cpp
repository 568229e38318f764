// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/batchnorm.h>

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/tensor/buffers.h"
#include "lockstep/tensor/script_module.h"
#include "lockstep/toolkit/average/averaged_model.h"

namespace lockstep {
namespace {

// A layer of any type. Tensors share its memory.
struct BatchNorm {
  std::optional<double>* momentum;
  at::Tensor mean, variance, batches;
  bool has_own_batches;  // SyncBatchNorm's include all ranks.
};

template <class Layer>
void add_if(torch::nn::Module& module, std::vector<BatchNorm>& layers) {
  auto* const layer = dynamic_cast<Layer*>(&module);
  if (layer == nullptr || !layer->options.track_running_stats()) return;
  layer->reset_running_stats();
  layers.push_back({&layer->options.momentum(), layer->running_mean, layer->running_var,
                    layer->num_batches_tracked, !std::is_same_v<Layer, SyncBatchNormImpl>});
}

void require_no_script(torch::nn::Module& module) {
  module.apply([](torch::nn::Module& part) {
    const auto* const script = dynamic_cast<const ScriptModule*>(&part);
    if (script != nullptr && !script->batch_norms().empty())
      throw Error(
          Fault::unsupported,
          "update_bn: layer '" + script->batch_norms().front() +
              "' of a TorchScript module has statistics that cannot be reset: run update_bn "
              "of the model in Python");
  });
}

std::vector<BatchNorm> layers_of(torch::nn::Module& module) {
  require_no_script(module);
  std::vector<BatchNorm> layers;
  module.apply([&](torch::nn::Module& part) {
    add_if<torch::nn::BatchNorm1dImpl>(part, layers);
    add_if<torch::nn::BatchNorm2dImpl>(part, layers);
    add_if<torch::nn::BatchNorm3dImpl>(part, layers);
    add_if<SyncBatchNormImpl>(part, layers);
  });
  return layers;
}

class CumulativeStatistics {
 public:
  CumulativeStatistics(torch::nn::Module& module, const std::vector<BatchNorm>& layers)
      : module_(module), was_training_(module.is_training()), layers_(layers) {
    for (const BatchNorm& layer : layers_)
      momenta_.push_back(std::exchange(*layer.momentum, std::nullopt));
    module_.train();
  }
  ~CumulativeStatistics() {
    for (std::size_t i = 0; i < layers_.size(); ++i) *layers_[i].momentum = momenta_[i];
    module_.train(was_training_);
  }
  CumulativeStatistics(const CumulativeStatistics&) = delete;
  CumulativeStatistics& operator=(const CumulativeStatistics&) = delete;

 private:
  torch::nn::Module& module_;
  const bool was_training_;
  const std::vector<BatchNorm>& layers_;
  std::vector<std::optional<double>> momenta_;
};

// Weights each rank's mean by its number of batches.
void average_over(const ProcessGroup& group, const std::vector<BatchNorm>& layers) {
  std::vector<double> sums;
  const auto each = [&](const auto& visit) {
    for (const BatchNorm& layer : layers)
      if (layer.has_own_batches) visit(layer);
  };
  each([&](const BatchNorm& layer) {
    const auto batches = layer.batches.item<double>();
    sums.push_back(batches);
    for (const at::Tensor& statistic : {layer.mean, layer.variance}) {
      const at::Tensor sum = (statistic.to(at::kDouble) * batches).cpu().contiguous();
      sums.insert(sums.end(), sum.const_data_ptr<double>(),
                  sum.const_data_ptr<double>() + sum.numel());
    }
  });
  group.all_reduce(buffer_of(sums), ReduceOp::sum, {.label = "statistics of batch norms"});
  auto sum = sums.begin();
  each([&](const BatchNorm& layer) {
    const double batches = *sum++;
    for (const at::Tensor& statistic : {layer.mean, layer.variance}) {
      const at::Tensor total = at::from_blob(&*sum, statistic.sizes(), at::kDouble);
      if (batches > 0) statistic.copy_(total / batches);
      sum += statistic.numel();
    }
    layer.batches.fill_(batches);
  });
}

}  // namespace

void update_bn(torch::nn::Module& module, const std::function<void()>& pass_over_data,
               const ProcessGroup& group) {
  const at::NoGradGuard no_grad;
  const std::vector<BatchNorm> layers = layers_of(module);
  if (layers.empty()) return;
  {
    const CumulativeStatistics cumulative(module, layers);
    pass_over_data();
  }
  if (group.size() > 1) average_over(group, layers);
}

}  // namespace lockstep
