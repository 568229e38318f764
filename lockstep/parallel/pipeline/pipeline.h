// Trains a model whose layers are on several ranks, in stages that pass activations to each other
// (docs/guide/pipeline.md).
//
//   lockstep::Pipeline pipeline(layers, mesh["pp"], {.microbatches = 8,
//                                                    .data_parallel = mesh["dp"]});
//   lockstep::AdamW adamw(pipeline.parameters(), torch::optim::AdamWOptions(3e-4));
//   adamw.zero_grad();
//   const double loss = pipeline.step(batch.data, [&](const torch::Tensor& logits,
//                                                     const lockstep::Microbatch& part) {
//     return torch::cross_entropy_loss(logits, part.of(batch.target));
//   });                               // The mean of this pipeline's microbatches, on its ranks.
//   adamw.step();
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/detail/passed_value.h"
#include "lockstep/parallel/fully_sharded/fully_sharded_data_parallel.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/parallel/pipeline/layer_list.h"
#include "lockstep/parallel/pipeline/pipeline_order.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/sharded_module.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

struct Microbatch {
  int index = 0;
  int count = 1;

  // This microbatch's rows: a view of `rows` along dim 0.
  LOCKSTEP_API at::Tensor of(const at::Tensor& rows) const;
};

struct PipelineOptions {
  std::optional<PipelineSchedule> schedule = {};  // Default: one_f_one_b.
  std::optional<int> microbatches = {};           // Default: 4.
  std::optional<int> stages_per_rank = {};        // Default: as PipelineShape.

  // Instead of these three options, such as from read_pipeline_order(file).
  std::optional<PipelineOrder> order = {};

  // First layers of all stages but the first. Default: by `costs`.
  std::vector<int> cut = {};

  // Costs of layers, in any unit, such as from measure_layers() (plan.h): the costliest stage
  // becomes as cheap as possible. If ranks pass different costs, each layer's largest counts.
  // Default: the elements of a layer's parameters.
  std::vector<double> costs = {};

  // Ranks with the same stages: replicas or, with fully_sharded, ranks that hold parameters
  // together. The latter need a FullyShardedOptimizer of data_parallel(). Gradients become means
  // over these ranks after this rank's last microbatch. GradientMean::over_samples is unsupported
  // (docs/guide/pipeline.md).
  std::optional<ProcessGroup> data_parallel = {};
  std::optional<DistributedDataParallelOptions> data_parallel_options = {};  // For replicas.
  std::optional<FullyShardedOptions> fully_sharded = {};  // Not for replicas; without `offload`.
};

class ShardedOptimizer;
struct ModelPart;

namespace parallel {

class PipelineRun;
class RankStages;

}  // namespace parallel

namespace pipeline {

// Returns a microbatch's loss, a tensor with one element.
using LossOf = std::function<at::Tensor(const PassedValue& output, const Microbatch& part)>;

template <class Function>
struct FirstOf;
template <class R, class A, class... Rest>
struct FirstOf<std::function<R(A, Rest...)>> {
  using type = std::decay_t<A>;
};

}  // namespace pipeline

class LOCKSTEP_API Pipeline : public Stateful {
 public:
  // Collective over `group`, data_parallel and the layers' tensor parallel groups. Ranks of `group`
  // are those of order().
  // Errors, on all ranks of the pipeline: misuse for wrong options, fewer layers than stages, and
  // an order that cannot be run (check_pipeline_order()). Mismatch if ranks, also of other
  // replicas, have other layers, plans or options. If only some ranks throw, the others throw
  // aborted with their text. Unsupported for a layer on a CUDA device and, with fully_sharded, for
  // a rank with nothing to train. Also Errors of LayerList, parallelize_module() and the class of
  // data_parallel().
  Pipeline(const LayerList& layers, const ProcessGroup& group, const PipelineOptions& options = {});
  ~Pipeline() override;
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Collective: forward and backward of one batch, equal on all ranks of the pipeline. `inputs`,
  // the first layer's argument, is cut into microbatches along dim 0, as by torch.tensor_split. The
  // last stage's rank calls loss_of(output, microbatch). Returns this pipeline's mean loss, on its
  // ranks, and adds the gradients to `.grad`. Shapes may differ between microbatches and steps.
  // Blocking: messages never wait for their receiver, so no checked order can deadlock.
  // Errors: misuse for a batch with fewer rows than microbatches. Mismatch for different batches:
  // each call compares the numbers of rows, and calls 1, 2, 4, 8 and so on the values. An exception
  // in a layer or a loss, or a lost rank, ends the step on all ranks of the pipeline and its
  // replicas. Other ranks' Errors have its text, stage, action and microbatch. The pipeline cannot
  // be used afterwards.
  template <class Inputs, class Loss>
  double step(const Inputs& inputs, Loss&& loss_of) {
    return run_step(pipeline::pack(inputs), erased(std::forward<Loss>(loss_of)));
  }

  // Collective: forward only, without gradients. Returns the mean of `measure`'s results. Otherwise
  // as step().
  template <class Inputs, class Measure>
  double evaluate(const Inputs& inputs, Measure&& measure) {
    return measure_all(pipeline::pack(inputs), erased(std::forward<Measure>(measure)));
  }

  // Parameters of this rank's stages. A weight tied across ranks is a parameter on each of them.
  std::vector<at::Tensor> parameters() const;
  NamedTensors named_parameters() const;  // With the names of the whole model.
  Layouts layouts() const;                // For parameters cut over tensor parallel ranks.

  // Collective: as clip_grad_norm_() of the whole model.
  // Errors: misuse with fully_sharded: pass the optimizer of all parameters(), as below.
  at::Tensor clip_grad_norm_(double max_norm, double norm_type = 2.0,
                             bool error_if_nonfinite = false);
  double clip_grad_norm_(ShardedOptimizer& optimizer, double max_norm, double norm_type = 2.0,
                         bool error_if_nonfinite = false);

  void train(bool on = true);  // As torch::nn::Module's.
  void eval() { train(false); }

  // This rank's layers. Parameters may be read.
  std::shared_ptr<torch::nn::Module> module() const;

  // Null without the option, and if this rank's stages have nothing to train.
  DataParallelBase* data_parallel() const;

  const PipelineOrder& order() const;
  const std::vector<int>& first_layers() const;  // By stage.

  // Shared memory through which this host's ranks pass activations and gradients.
  std::size_t message_bytes() const;

  // The whole model's state: saves this rank's stages, loads their part of any save of the model.
  StateDict state_dict() override;
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

  [[deprecated("use state_of()")]] std::unique_ptr<Stateful> optimizer_state(
      torch::optim::Optimizer& optimizer) const {
    return state_of(optimizer, *this);
  }

 private:
  friend LOCKSTEP_API std::unique_ptr<Stateful> state_of(torch::optim::Optimizer& optimizer,
                                                         const Pipeline& pipeline);

  template <class Function>
  static pipeline::LossOf erased(Function&& loss_of) {
    using Output =
        typename pipeline::FirstOf<decltype(std::function(std::forward<Function>(loss_of)))>::type;
    return [&loss_of](const pipeline::PassedValue& output, const Microbatch& part) {
      return loss_of(pipeline::unpack<Output>(output), part);
    };
  }
  double run_step(const pipeline::PassedValue& inputs, const pipeline::LossOf& loss_of);
  double measure_all(const pipeline::PassedValue& inputs, const pipeline::LossOf& measure);

  ModelPart part() const;

  const ProcessGroup group_;
  const std::unique_ptr<parallel::RankStages> stages_;
  const std::unique_ptr<parallel::PipelineRun> run_;
};

// For an optimizer of parameters().
LOCKSTEP_API std::unique_ptr<Stateful> state_of(torch::optim::Optimizer& optimizer,
                                                const Pipeline& pipeline);

}  // namespace lockstep
