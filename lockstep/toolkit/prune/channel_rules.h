// Rules for nodes of the autograd graph: how operations propagate channels.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/toolkit/prune/channel_trace.h"

namespace lockstep::prune {

struct TracedCall {
  const torch::autograd::Node& node;
  std::vector<const LabelledShape*> inputs;  // By edge; null for a value without a gradient.
  std::vector<LabelledShape> outputs;        // Sizes are known; the rule adds labels.
  ChannelTrace& trace;

  // Index in trace.tensors of a tensor that the operation saved, or -1.
  std::function<int(const at::Tensor& saved)> index_of;

  // The tensor with this label, such as a weight.
  std::function<std::size_t(Label label)> owner_of;
};

// Without a rule, excludes all channels of the inputs from removal.
void apply_rule(TracedCall& call);

}  // namespace lockstep::prune
