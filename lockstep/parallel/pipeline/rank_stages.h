// The layers of a pipeline's stages that this rank has, as one module with the names of the whole
// model.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/pipeline/layer_list.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/parallel/pipeline/tied_weights.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

using pipeline::Layer;
using pipeline::LossOf;
using pipeline::pack;
using pipeline::PassedValue;

// All that is known of the whole model, on every rank.
struct WholeModel {
  struct Tensor {
    std::vector<std::int64_t> shape;
    std::size_t layer = 0;
    bool is_parameter = false;
  };
  std::map<std::string, Tensor> tensors;          // By name in the whole model.
  std::vector<std::vector<std::string>> modules;  // By layer: names of all its modules.
  std::vector<double> elements;                   // By layer: of its parameters.
};

// The layers of this rank.
class StageModule : public torch::nn::Module {
 public:
  void add(int stage, const std::string& name, Layer layer);

  // Of one stage. Errors name the layer.
  PassedValue forward(int stage, const PassedValue& value);

  // A result whose backward() hands over what `.grad` of all parameters has: as if one pass had
  // computed it.
  at::Tensor forward();

  // Whether a parameter of the stage requires a gradient.
  bool is_trained(int stage) const;

 private:
  struct Named {
    std::string name;
    Layer layer;
  };
  std::map<int, std::vector<Named>> stages_;
};

class RankStages {
 public:
  // Collective. Errors: as Pipeline's constructor.
  RankStages(const LayerList& layers, const ProcessGroup& group, const PipelineOptions& options);
  ~RankStages();

  const PipelineOrder& order() const { return order_; }
  const std::vector<int>& first_layers() const { return first_layers_; }
  const WholeModel& whole() const { return whole_; }
  const std::shared_ptr<StageModule>& module() const { return module_; }
  DataParallelBase* data_parallel() const { return data_parallel_.get(); }
  bool is_fully_sharded() const { return is_fully_sharded_; }
  const TiedWeights& ties() const { return *ties_; }
  bool whole_saves(const std::string& name) const { return !tied_away_.contains(name); }
  std::string text_of(int stage) const;  // "stage 2 (layers h.4 to h.7)".

  PassedValue forward(int stage, const PassedValue& value) { return forward_(stage, value); }

  // While it lives, gradients stay on this rank.
  std::unique_ptr<DataParallelBase::NoSync> no_sync();

  void begin_step() { ties_->begin_step(); }

  // Collective, at the end of a step, in this order. The second makes gradients means over data
  // parallel ranks.
  void add_tied_gradients() { ties_->add_gradients(); }
  void average_gradients();

 private:
  void make_layers(const LayerList& layers, const ProcessGroup& group);
  void wrap(const PipelineOptions& options);
  FullyShardedOptions of_this_rank(FullyShardedOptions options) const;

  PipelineOrder order_;
  std::vector<int> first_layers_;
  std::vector<std::string> layer_names_;
  std::set<std::string> tied_away_;  // Parameters that are saved under another name.
  WholeModel whole_;
  const std::shared_ptr<StageModule> module_ = std::make_shared<StageModule>();
  std::unique_ptr<TiedWeights> ties_;
  std::shared_ptr<DataParallelBase> data_parallel_;
  bool is_fully_sharded_ = false;
  std::function<PassedValue(int, const PassedValue&)> forward_;
  std::function<at::Tensor()> all_gradients_;  // Null without data parallel ranks.
};

}  // namespace lockstep::parallel
