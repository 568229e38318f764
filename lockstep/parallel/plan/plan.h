// Lets `lockstep plan` measure a program's model, to choose how to divide it among ranks.
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
// `lockstep plan -n 8 --nnodes 2 PROGRAM` plans 16 ranks. It starts the program once, with the 8
// ranks of one host. Each layer is made and measured alone, so the whole model never exists.
// Measured are time and memory, how both depend on the number of rows, and how they change when
// tensor parallel ranks divide the layer. Layers of one kind (PlanOptions::kind_of) are measured
// once.
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

// Features of the program besides replicas, and parts of a training that layers do not determine.
struct PlanOptions {
  // As LayerList::parallelize() takes it. If empty, layers stay whole.
  ParallelPlan tensor_parallel = {};
  bool context_parallel = false;  // Sequences can be cut.
  bool fully_sharded = false;
  bool pipeline = true;

  // Makes the optimizer of these parameters; by default lockstep::AdamW.
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)> optimizer = {};

  // Returns a text that identifies the kind of a layer, from the layer's name. By default, layers
  // are of one kind if names, types and shapes of their modules, parameters, buffers and inputs
  // agree, and the text of pretty_print(). Layers that differ in fields outside of that text, such
  // as the window of an attention, need different texts here.
  std::function<std::string(const std::string& layer)> kind_of = {};
};

namespace plan {

// Computes the loss of a microbatch's output, which may be cut over the ranks `tp`.
using CutLossOf = std::function<at::Tensor(const pipeline::PassedValue& output,
                                           const Microbatch& part, const ProcessGroup& tp)>;

// Whether `lockstep plan` started this process.
LOCKSTEP_API bool is_asked();

// Collective over all ranks that `lockstep plan` started.
// Errors: as plan_if_asked(); misuse unless is_asked().
LOCKSTEP_API void measure(const LayerList& layers, const pipeline::PassedValue& batch,
                          const CutLossOf& loss_of, const PlanOptions& options);

}  // namespace plan

// Measures the layers and writes the result, if `lockstep plan` started the program. Returns true
// then, and the program must end. Otherwise has no effect and returns false. Call it before
// init_process_group(), which fails under `lockstep plan`.
//
// `batch` is the first layer's input, with the rows of a whole step of all ranks. `loss_of` is
// called as by Pipeline::step(). If the last layer's output is cut over tensor parallel ranks,
// these are its third argument.
// Blocking: collective over all ranks that `lockstep plan` started.
// Errors: misuse for a batch without rows, for a list without layers and for a wrong tie;
// exceptions of layers and loss. If all ranks refuse to cut a layer over some number of ranks, this
// is no Error but a part of the result. mismatch if only some refuse, or if ranks measured
// different layers.
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

// Seconds of one microbatch in each layer, forward and backward, on this rank. Suitable for the
// option `costs` of a Pipeline, whose ranks agree on the slowest. `example` is the input of the
// first layer, with a microbatch's rows. Makes layers one at a time and restores random generators.
// Blocking: does not communicate. Errors: as the layers'.
LOCKSTEP_API std::vector<double> measure_layers(const LayerList& layers, const at::Tensor& example);

}  // namespace lockstep
