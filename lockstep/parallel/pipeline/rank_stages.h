// A pipeline's stages on this rank, and the wrapper that averages gradients.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/pipeline/layer_list.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/parallel/pipeline/stage_choice.h"
#include "lockstep/parallel/pipeline/stage_module.h"
#include "lockstep/parallel/pipeline/tied_weights.h"
#include "lockstep/parallel/pipeline/whole_model.h"

namespace lockstep::parallel {

using pipeline::Layer;
using pipeline::LossOf;
using pipeline::PassedValue;

class RankStages {
 public:
  // Collective. Errors: as Pipeline's constructor.
  RankStages(const LayerList& layers, const ProcessGroup& group, const PipelineOptions& options);
  ~RankStages();

  const PipelineOrder& order() const { return choice_.order; }
  const std::vector<int>& first_layers() const { return choice_.first_layers; }
  const WholeModel& whole() const { return choice_.whole; }
  const std::shared_ptr<StageModule>& module() const { return module_; }
  DataParallelBase* data_parallel() const { return data_parallel_.get(); }
  bool is_fully_sharded() const { return is_fully_sharded_; }
  const TiedWeights& ties() const { return *ties_; }
  bool whole_saves(const std::string& name) const { return !tied_away_.contains(name); }
  std::string text_of(int stage) const;  // "stage 2 (layers h.4 to h.7)".

  PassedValue forward(int stage, const PassedValue& value) { return forward_(stage, value); }

  // Aborts passes of replicas, and sums of tied weights, that would wait for this rank.
  void abort(const std::string& reason);

  // While the result exists, data_parallel() does not average gradients.
  std::unique_ptr<DataParallelBase::NoSync> no_sync();

  // Before a step, and after each of its actions on this rank.
  void begin_step() { ties_->begin_step(); }
  void after(const PipelineAction& action) { ties_->after(action); }

  // Collective, at the end of a step, in this order.
  void add_tied_gradients() { ties_->add_gradients(); }
  void average_gradients();

 private:
  void make_layers(const LayerList& layers, int rank);
  void tie(const LayerList& layers, const ProcessGroup& group);
  void wrap(const PipelineOptions& options);
  FullyShardedOptions of_this_rank(FullyShardedOptions options) const;

  const StageChoice choice_;
  std::vector<std::string> layer_names_;
  std::set<std::string> tied_away_;  // Saved under another name.
  const std::shared_ptr<StageModule> module_ = std::make_shared<StageModule>();
  std::unique_ptr<TiedWeights> ties_;
  std::shared_ptr<DataParallelBase> data_parallel_;
  bool is_fully_sharded_ = false;
  std::function<PassedValue(int, const PassedValue&)> forward_;
  std::function<at::Tensor()> all_gradients_;  // Null without data_parallel_.
};

}  // namespace lockstep::parallel
