// Lets `lockstep plan` measure a model, to choose how to divide it among ranks. docs/guide/plan.md
// has a program.
//
// `lockstep plan` starts the program once, with one host's ranks. Layers are made and measured one
// at a time: the whole model never exists.
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

// Ways to divide this program's model, besides replicas.
struct PlanOptions {
  // As in LayerList::parallelize(). If empty, layers stay whole.
  ParallelPlan tensor_parallel = {};
  bool context_parallel = false;  // Sequences can be cut.
  bool fully_sharded = false;
  bool pipeline = true;

  // Makes the optimizer. Default: lockstep::AdamW.
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)> optimizer = {};

  // Layers of one kind are measured once. Names within the layer, types, shapes and modes of
  // modules, parameters, buffers and inputs agree, as do pretty_print() and cuts. Return different
  // texts for other differences. The first layer is a kind of its own.
  std::function<std::string(const std::string& layer)> kind_of = {};
};

namespace plan {

// The loss of a microbatch's output, which may be cut over the ranks `tp`.
using CutLossOf = std::function<at::Tensor(const pipeline::PassedValue& output,
                                           const Microbatch& part, const ProcessGroup& tp)>;

// Whether `lockstep plan` started this process.
LOCKSTEP_API bool is_asked();

// Collective, as plan_if_asked().
// Errors: the same; misuse unless is_asked().
LOCKSTEP_API void measure(const LayerList& layers, const pipeline::PassedValue& batch,
                          const CutLossOf& loss_of, const PlanOptions& options);

}  // namespace plan

// Under `lockstep plan`, measures the layers, writes the result and returns true: the program must
// then end. Otherwise returns false. Call it before init_process_group(), which fails under
// `lockstep plan`.
//
// `batch` is the first layer's input, with the rows of a whole step of all ranks. `loss_of` is as
// in Pipeline::step(); if the last layer's output is cut, it takes the tensor parallel ranks' group
// as third argument.
// Blocking: collective over the ranks of `lockstep plan`.
// Errors: misuse for a batch without rows, a list without layers and a wrong tie; exceptions of
// layers and loss. Mismatch if a cut layer or loss throws misuse or c10::Error on some ranks only,
// or ranks have different layers or rows. If all throw it, the result records this.
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

// Seconds of one microbatch in each layer, forward plus backward, on this rank, for a Pipeline's
// `costs`. `example` is the first layer's input with a microbatch's rows. Restores the default
// generator, does not communicate. Errors: the layers'.
LOCKSTEP_API std::vector<double> measure_layers(const LayerList& layers, const at::Tensor& example);

}  // namespace lockstep
