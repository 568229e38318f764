// Finds a model's channels in the autograd graph of one forward(): their places in the parameters,
// and which belong together. Follows DepGraph (Fang et al., 2023), with a label per channel.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "lockstep/toolkit/prune/channel_labels.h"

namespace torch::nn {
class Module;
}

namespace lockstep::prune {

struct LabelledShape {
  std::vector<std::int64_t> sizes;
  std::vector<LabelledDim> dims;
};

// A parameter or buffer.
struct LabelledTensor {
  std::string name;
  at::Tensor tensor;
  bool is_parameter;
  LabelledShape shape;
};

// A product with a weight, at `places` positions (such as pixels) of all samples.
struct WeightProduct {
  std::size_t weight;  // Index in ChannelTrace::tensors.
  std::int64_t places;
};

struct ChannelTrace {
  ChannelLabels labels;
  std::vector<LabelledTensor> tensors;  // Each once.
  std::set<std::size_t> norm_scales;    // Indices of scales of BatchNorms.
  std::vector<WeightProduct> products;
};

// Requires: all parameters required a gradient in the forward() of `outputs`. Keeps channels that
// reach a node without a rule, and reports its name.
ChannelTrace trace_channels(const torch::nn::Module& module,
                            const std::vector<at::Tensor>& outputs);

}  // namespace lockstep::prune
