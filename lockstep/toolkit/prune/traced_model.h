// Traces one forward() without changing the model.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/tensor/generator_states.h"
#include "lockstep/toolkit/prune/channel_trace.h"

namespace lockstep::prune {

// Sets evaluation mode: BatchNorm keeps its statistics. The destructor restores all modes and the
// default generator.
class InEvaluation {
 public:
  explicit InEvaluation(torch::nn::Module& module);
  ~InEvaluation();
  InEvaluation(const InEvaluation&) = delete;
  InEvaluation& operator=(const InEvaluation&) = delete;

 private:
  const KeptGenerator generator_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;  // Parents first.
  torch::nn::Module& module_;
  const bool was_training_;
};

struct TracedModel {
  ChannelTrace trace;
  std::int64_t samples;  // In the example.
};

// Errors: those of `forward`; misuse if its result does not depend on any parameter.
TracedModel trace_model(torch::nn::Module& module,
                        const std::function<std::vector<at::Tensor>()>& forward);

}  // namespace lockstep::prune
