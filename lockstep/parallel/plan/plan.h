// Lets `lockstep plan` measure a program's model, to choose how to divide it among ranks
// (docs/guide/plan.md).
//
//   int main() {
//     const LayerList layers = ...;
//     if (lockstep::plan_if_asked(layers, tokens, [&](const torch::Tensor& logits,
//                                                     const lockstep::Microbatch& part) {
//           return torch::cross_entropy_loss(logits.flatten(0, 1), part.of(targets).flatten());
//         })) return 0;
//     auto world = lockstep::init_process_group();
//     ...
//
// `lockstep plan` starts the program once, with the ranks of one host. Each layer is made and
// measured alone, so the whole model never exists.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/detail/passed_value.h"
#include "lockstep/parallel/pipeline/layer_list.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/parallel/tensor_parallel/parallelize_module.h"

namespace lockstep {

// Features of the program besides replicas.
struct PlanOptions {
  // As in LayerList::parallelize(). If empty, layers stay whole.
  ParallelPlan tensor_parallel = {};
  bool context_parallel = false;  // Sequences can be cut.
  bool fully_sharded = false;
  bool pipeline = true;

  // Makes the optimizer of these parameters. Default: lockstep::AdamW.
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)> optimizer = {};

  // Returns a text that identifies a layer's kind. By default, layers are of one kind if names,
  // types and shapes of their modules, parameters, buffers and inputs agree, and the text of
  // pretty_print(). Layers that differ otherwise need different texts.
  std::function<std::string(const std::string& layer)> kind_of = {};
};

namespace plan {

// The loss of a microbatch's output, which may be cut over the ranks `tp`.
using CutLossOf = std::function<at::Tensor(const pipeline::PassedValue& output,
                                           const Microbatch& part, const ProcessGroup& tp)>;

// Whether `lockstep plan` started this process.
LOCKSTEP_API bool is_asked();

// Collective over all ranks that `lockstep plan` started.
// Errors: as plan_if_asked(); misuse unless is_asked().
LOCKSTEP_API void measure(const LayerList& layers, const pipeline::PassedValue& batch,
                          const CutLossOf& loss_of, const PlanOptions& options);

}  // namespace plan

// Measures the layers and writes the result, if `lockstep plan` started the program. Then it
// returns true, and the program must end. Otherwise it has no effect. Call it before
// init_process_group(), which fails under `lockstep plan`.
//
// `batch` is the first layer's input, with the rows of a whole step of all ranks. `loss_of` is as
// in Pipeline::step(). If the last layer's output is cut, `loss_of` takes the group of tensor
// parallel ranks as third argument.
// Blocking: collective over all ranks that `lockstep plan` started.
// Errors: misuse for a batch without rows, a list without layers and a wrong tie; exceptions of
// layers and loss. If all ranks refuse to cut a layer over some number of ranks, this is a part of
// the result. Mismatch if only some refuse, or if ranks measured different layers.
template <class Inputs, class Loss>
bool plan_if_asked(const LayerList& layers, const Inputs& batch, const Loss& loss_of,
                   const PlanOptions& options = {}) {
  if (!plan::is_asked()) return false;
  using Output = typename pipeline::FirstOf<decltype(std::function(loss_of))>::type;
  plan::measure(
      layers, pipeline::pack(batch),
      [&](const pipeline::PassedValue& output, const Microbatch& part, const ProcessGroup& tp) {
        if constexpr (std::is_invocable_v<const Loss&, Output, const Microbatch&,
                                          const ProcessGroup&>)
          return loss_of(pipeline::unpack<Output>(output), part, tp);
        else
          return loss_of(pipeline::unpack<Output>(output), part);
      },
      options);
  return true;
}

// Seconds of one microbatch in each layer, forward and backward, on this rank, for a Pipeline's
// option `costs`. `example` is the input of the first layer, with a microbatch's rows. Makes layers
// one at a time, restores random generators, and does not communicate. Errors: as the layers'.
LOCKSTEP_API std::vector<double> measure_layers(const LayerList& layers, const at::Tensor& example);

}  // namespace lockstep
