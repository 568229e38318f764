// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/pipeline.h"

#include "lockstep/base/error.h"
#include "lockstep/optim/model_part.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "lockstep/parallel/pipeline/pipeline_run.h"
#include "lockstep/parallel/pipeline/pipeline_state.h"
#include "lockstep/parallel/pipeline/rank_stages.h"

namespace lockstep {

at::Tensor Microbatch::of(const at::Tensor& rows) const {
  require(rows.dim() > 0 && rows.size(0) >= count, [&] {
    return "Microbatch: " + std::to_string(rows.dim() > 0 ? rows.size(0) : 0) +
           " rows cannot be cut into " + std::to_string(count) + " parts";
  });
  return rows.tensor_split(count)[static_cast<std::size_t>(index)];
}

Pipeline::Pipeline(const LayerList& layers, const ProcessGroup& group,
                   const PipelineOptions& options)
    : group_(group),
      stages_(std::make_unique<parallel::RankStages>(layers, group, options)),
      run_(std::make_unique<parallel::PipelineRun>(*stages_, group)) {}

Pipeline::~Pipeline() = default;

double Pipeline::run_step(const pipeline::PassedValue& inputs, const pipeline::LossOf& loss_of) {
  return run_->train(inputs, loss_of);
}

double Pipeline::measure_all(const pipeline::PassedValue& inputs, const pipeline::LossOf& measure) {
  return run_->evaluate(inputs, measure);
}

std::vector<at::Tensor> Pipeline::parameters() const { return stages_->module()->parameters(); }

NamedTensors Pipeline::named_parameters() const { return parallel::saved_parameters(*stages_); }

Layouts Pipeline::layouts() const {
  Layouts layouts;
  for (const auto& [name, layout] : layouts_of(*stages_->module()))
    layouts.emplace(stages_->ties().saved_name(name), layout);
  return layouts;
}

ModelPart Pipeline::part() const {
  ModelPart part{.parameters = lockstep::named_parameters(*stages_->module()),
                 .layouts = layouts_of(*stages_->module()),
                 .copies = {},
                 .stages = group_};
  for (const auto& [name, parameter] : part.parameters)
    if (!stages_->ties().counts(name)) part.copies.insert(name);
  return part;
}

at::Tensor Pipeline::clip_grad_norm_(double max_norm, double norm_type, bool error_if_nonfinite) {
  require(!stages_->is_fully_sharded(),
          "Pipeline: gradients of a fully sharded pipeline are its optimizer's: call "
          "clip_grad_norm_(optimizer, ...)");
  return clip_parts(part(), max_norm, norm_type, error_if_nonfinite);
}

double Pipeline::clip_grad_norm_(ShardedOptimizer& optimizer, double max_norm, double norm_type,
                                 bool error_if_nonfinite) {
  return optimizer.clip_grad_norm_(part(), max_norm, norm_type, error_if_nonfinite);
}

void Pipeline::train(bool on) { stages_->module()->train(on); }

std::shared_ptr<torch::nn::Module> Pipeline::module() const { return stages_->module(); }

DataParallelBase* Pipeline::data_parallel() const { return stages_->data_parallel(); }

const PipelineOrder& Pipeline::order() const { return stages_->order(); }

const std::vector<int>& Pipeline::first_layers() const { return stages_->first_layers(); }

std::size_t Pipeline::message_bytes() const { return run_->message_bytes(); }

StateDict Pipeline::state_dict() { return parallel::model_state(*stages_)->state_dict(); }

StateRequest Pipeline::wanted(const StateDict& saved) {
  return parallel::model_state(*stages_)->wanted(saved);
}

void Pipeline::load_state_dict(StateDict state) {
  parallel::model_state(*stages_)->load_state_dict(std::move(state));
}

std::unique_ptr<Stateful> state_of(torch::optim::Optimizer& optimizer, const Pipeline& pipeline) {
  return parallel::optimizer_state(optimizer, *pipeline.stages_);
}

}  // namespace lockstep
