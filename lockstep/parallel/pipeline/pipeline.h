// Trains a model whose layers lie on several ranks: each has a stage, or several, and passes
// activations to the next.
//
//   lockstep::Pipeline pipeline(layers, mesh["pp"], {.microbatches = 8,
//                                                    .data_parallel = mesh["dp"]});
//   lockstep::AdamW adamw(pipeline.parameters(), torch::optim::AdamWOptions(3e-4));
//   ...
//   adamw.zero_grad();
//   const double loss = pipeline.step(batch.data, [&](const torch::Tensor& logits,
//                                                     const lockstep::Microbatch& part) {
//     return torch::cross_entropy_loss(logits, part.of(batch.target));
//   });                                            // The mean of all microbatches, on every rank.
//   pipeline.clip_grad_norm_(1.0);
//   adamw.step();
//
// All ranks of the pipeline pass the same batch, which calls 1, 2, 4, 8 and so on of step() and
// evaluate() compare; numbers of rows are compared in each. It is cut into microbatches along dim
// 0, as torch.tensor_split does; step() runs forward and backward of all of them in the order of
// the schedule. Each loss is divided by their number: gradients are those of the mean of all
// losses, and are added to what `.grad` has. If batches have as many rows as microbatches times a
// number, this is the mean over all rows.
//
// Ranks of one host pass activations and gradients through memory that all have mapped: the sender
// copies once, the receiver not at all. The first step learns their sizes. Between hosts they are
// messages, which never wait for their receiver, so no order of actions can stop for ever. Shapes
// may differ between microbatches and steps.
//
// Data parallel: with `data_parallel`, several pipelines train replicas, and gradients become means
// over them when this rank's last microbatch is done. With `fully_sharded` too, the ranks of a host
// that have the same stage share one copy of it: then the optimizer is a FullyShardedOptimizer of
// data_parallel().
// Tensor parallel: LayerList::parallelize().
//
// Random numbers: each step and evaluation draws one number of LibTorch's default generator, from
// which layers and losses then get other ones on each rank of the pipeline. So dropout has another
// mask in each stage, and the generators of all ranks stay equal.
//
// Checkpoints: state.add("model", pipeline) and state.add("optimizer", adamw, pipeline) save whole
// tensors under the names of the whole model, so any number of stages can load them.
//
// Thread safety: none; one training loop uses it.
// Errors: constructor, on all ranks of the pipeline, before anything is made: misuse for options
// that exclude each other, fewer layers than stages, a cut that does not increase, an order that
// cannot be run (check_pipeline_order()), and all of LayerList; mismatch if ranks, also those of
// other replicas, have other layers, plans or options. If only some ranks throw, the others throw
// aborted with their text. Once layers are made: unsupported for one on a CUDA device, and as
// parallelize_module() and the class of data_parallel(). step(): misuse for a batch with fewer
// rows than microbatches, mismatch for ranks with different batches. An exception in a layer or a
// loss ends the step on all ranks of the pipeline and of its replicas, with its text and with
// stage, action and microbatch; so does a rank that dies or does not come in time. The pipeline
// cannot be used afterwards.

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

// A part of a step's batch.
struct Microbatch {
  int index = 0;
  int count = 1;

  // This part of `rows`, along dim 0: a view.
  LOCKSTEP_API at::Tensor of(const at::Tensor& rows) const;
};

struct PipelineOptions {
  std::optional<PipelineSchedule> schedule = {};  // By default one_f_one_b.
  std::optional<int> microbatches = {};           // By default 4.
  std::optional<int> stages_per_rank = {};        // By default the schedule's: PipelineShape.

  // Instead of these three, such as read_pipeline_order(file).
  std::optional<PipelineOrder> order = {};

  // The first layer of each stage but the first. By default, the costliest stage is as cheap as it
  // can be.
  std::vector<int> cut = {};

  // Without `cut`: cost of each layer, in any unit: measure_layers() (plan.h) measures them. If
  // ranks have other ones, the largest decide. By default, the number of elements of a layer's
  // parameters.
  std::vector<double> costs = {};

  // Ranks that have the same stages: replicas, or ranks that share one copy. With both kinds of
  // options, GradientMean::over_samples is unsupported: losses can be sums times
  // `part.count / samples`.
  std::optional<ProcessGroup> data_parallel = {};
  std::optional<DistributedDataParallelOptions> data_parallel_options = {};  // Of replicas.
  std::optional<FullyShardedOptions> fully_sharded = {};  // Without `offload`; instead of replicas.
};

class ShardedOptimizer;
struct ModelPart;

namespace parallel {

class PipelineRun;
class RankStages;

}  // namespace parallel

namespace pipeline {

// Returns the loss of a microbatch, a tensor with one element, from its output.
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
  // Collective over `group`, whose ranks are in the order of their stages, and over the groups of
  // the options.
  Pipeline(const LayerList& layers, const ProcessGroup& group, const PipelineOptions& options = {});
  ~Pipeline() override;
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Collective: forward and backward of one batch. `inputs` is what the first layer takes, with
  // tensors whose rows are the batch's; `loss_of` is called on the rank of the last stage, as in
  // loss_of(output, microbatch), where `output` is what the last layer returns. Returns the mean of
  // the losses, on all ranks.
  template <class Inputs, class Loss>
  double step(const Inputs& inputs, Loss&& loss_of) {
    return run_step(pipeline::pack(inputs), erased(std::forward<Loss>(loss_of)));
  }

  // Collective: forward alone, without gradients. Returns the mean of `measure`'s results.
  template <class Inputs, class Measure>
  double evaluate(const Inputs& inputs, Measure&& measure) {
    return measure_all(pipeline::pack(inputs), erased(std::forward<Measure>(measure)));
  }

  // Those of this rank's stages. A weight that is tied to one of another rank is among those of
  // both.
  std::vector<at::Tensor> parameters() const;
  NamedTensors named_parameters() const;  // With the names of the whole model.
  Layouts layouts() const;                // Parameters that are cut over ranks.

  // Collective: as clip_grad_norm_() of the whole model. Errors: misuse with fully_sharded: then
  // the second one, with the optimizer of all parameters(), is the right one.
  at::Tensor clip_grad_norm_(double max_norm, double norm_type = 2.0,
                             bool error_if_nonfinite = false);
  double clip_grad_norm_(ShardedOptimizer& optimizer, double max_norm, double norm_type = 2.0,
                         bool error_if_nonfinite = false);

  void train(bool on = true);  // As torch::nn::Module's.
  void eval() { train(false); }

  // This rank's layers, under their names. Its parameters may be read.
  std::shared_ptr<torch::nn::Module> module() const;

  // Null without the option of that name, and on a rank whose stages have nothing to train.
  DataParallelBase* data_parallel() const;

  const PipelineOrder& order() const;
  const std::vector<int>& first_layers() const;  // By stage.

  // Bytes of the memory through which ranks of this host pass activations.
  std::size_t message_bytes() const;

  // The state of the whole model: that of this rank's stages, and what it needs of a saved one.
  StateDict state_dict() override;
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

  // The same of an optimizer of parameters().
  std::unique_ptr<Stateful> optimizer_state(torch::optim::Optimizer& optimizer) const;

 private:
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

}  // namespace lockstep
