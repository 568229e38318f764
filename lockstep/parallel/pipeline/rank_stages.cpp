// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/rank_stages.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/parallel/gradients/sink_choice.h"
#include "lockstep/parallel/replicate/replicas.h"
#include "lockstep/tensor/name_pattern.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep::parallel {
namespace {

bool has(const torch::nn::Module& root, const std::string& pattern) {
  return std::ranges::any_of(root.named_modules("", /*include_self=*/false),
                             [&](const auto& each) { return matches(pattern, each.key()); });
}

void require_cpu(const NamedTensors& tensors, const std::string& layer) {
  for (const auto& [name, tensor] : tensors)
    if (!tensor.is_cpu())
      throw Error(Fault::unsupported, "Pipeline: " + layer + "." + name + " is on " +
                                          tensor.device().str() + ": stages pass CPU tensors");
}

}  // namespace

RankStages::RankStages(const LayerList& layers, const ProcessGroup& group,
                       const PipelineOptions& options)
    : choice_(choose_stages(layers, group, options)) {
  for (std::size_t i = 0; i < layers.size(); ++i) layer_names_.push_back(layers.name(i));
  for (const LayerList::Tie& tie : layers.ties()) tied_away_.insert(tie.parameter);
  on_all_ranks(group, [&] { make_layers(layers, group.rank()); });
  tie(layers, group);
  on_all_ranks(group, [&] { wrap(options); });
  ties_->follow_memory();
}

RankStages::~RankStages() = default;

void RankStages::make_layers(const LayerList& layers, int rank) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    Layer layer = layers.make(i);  // For the random numbers of one process.
    const NamedTensors tensors = named_tensors(*layer.module);
    require_values(tensors, "Pipeline: layer " + layers.name(i));
    require_cpu(tensors, layers.name(i));
    if (choice_.rank_of(i) == rank)
      module_->add(choice_.stage_of(i), layers.name(i), std::move(layer));
  }
  for (const auto& [tp, plan, options] : layers.cuts()) {
    ParallelPlan mine;
    for (const auto& entry : plan)
      if (has(*module_, entry.first)) mine.push_back(entry);
    if (!mine.empty()) parallelize_module(*module_, tp, mine, options);
  }
}

void RankStages::tie(const LayerList& layers, const ProcessGroup& group) {
  require_equal_parts(layers, *module_, group);
  TiedWeights::Stages stages;
  for (const auto& [name, tensor] : choice_.whole.tensors)
    stages[name] = choice_.stage_of(tensor.layer);
  ties_ = std::make_unique<TiedWeights>(layers.ties(), stages, order(), *module_, group);
}

void RankStages::wrap(const PipelineOptions& options) {
  is_fully_sharded_ = options.fully_sharded.has_value();
  forward_ = [this](int stage, const PassedValue& value) { return module_->forward(stage, value); };
  if (!options.data_parallel) return;
  const std::vector<at::Tensor> parameters = module_->parameters();
  // Nothing to average, but replicas must be equal.
  if (std::ranges::none_of(parameters, [](const auto& each) { return each.requires_grad(); }))
    return broadcast_replica(lockstep::named_tensors(*module_), *options.data_parallel);
  const auto take = [&](auto wrapped) {
    forward_ = [&it = *wrapped](int stage, const PassedValue& value) { return it(stage, value); };
    all_gradients_ = [&it = *wrapped] { return it(); };
    data_parallel_ = std::move(wrapped);
  };
  // Separate, because abort() aborts it.
  const ProcessGroup replicas = options.data_parallel->split(0, options.data_parallel->rank());
  if (is_fully_sharded_)
    take(std::make_shared<FullyShardedDataParallel<StageModule>>(
        module_, replicas, of_this_rank(*options.fully_sharded)));
  else
    take(std::make_shared<DistributedDataParallel<StageModule>>(
        module_, replicas,
        options.data_parallel_options.value_or(DistributedDataParallelOptions())));
}

// Omits units on other ranks.
FullyShardedOptions RankStages::of_this_rank(FullyShardedOptions options) const {
  for (const std::string& unit : options.units)
    require(choice_.whole.has_module(unit),
            [&] { return "Pipeline: no layer has a module '" + unit + "' for a unit"; });
  std::erase_if(options.units, [&](const std::string& unit) { return !has(*module_, unit); });
  return options;
}

void RankStages::abort(const std::string& reason) {
  ties_->abort(reason);
  if (data_parallel_) data_parallel_->sinks_->group().abort(reason);
}

std::unique_ptr<DataParallelBase::NoSync> RankStages::no_sync() {
  if (!data_parallel_) return nullptr;
  return std::unique_ptr<DataParallelBase::NoSync>(
      new DataParallelBase::NoSync(data_parallel_->no_sync()));  // NoSync cannot be moved.
}

void RankStages::average_gradients() {
  if (all_gradients_) all_gradients_().backward();
}

std::string RankStages::text_of(int stage) const {
  const std::size_t i = static_cast<std::size_t>(stage);
  const auto begin = static_cast<std::size_t>(first_layers()[i]);
  const auto end = i + 1 < first_layers().size() ? static_cast<std::size_t>(first_layers()[i + 1])
                                                 : layer_names_.size();
  std::string text = "stage " + std::to_string(stage) + " (";
  text += end - begin == 1 ? "layer " + layer_names_[begin]
                           : "layers " + layer_names_[begin] + " to " + layer_names_[end - 1];
  return text + ")";
}

}  // namespace lockstep::parallel
