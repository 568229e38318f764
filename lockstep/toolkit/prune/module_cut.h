// Removes indices from a module's tensors in place, and restores them.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/toolkit/prune/pruning_plan.h"

namespace lockstep::prune {

class TensorCut {
 public:
  explicit TensorCut(at::Tensor tensor)
      : tensor_(std::move(tensor)), before_(tensor_.detach()), gradient_before_(tensor_.grad()) {}

  void add(std::int64_t dim, const std::vector<std::int64_t>& kept);

  // The remaining part of `values`, which have the tensor's shape before the cut.
  at::Tensor left_of(const at::Tensor& values) const;

  const at::Tensor& tensor() const { return tensor_; }
  const at::Tensor& before() const { return before_; }
  const at::Tensor& gradient_before() const { return gradient_before_; }

 private:
  at::Tensor tensor_;
  at::Tensor before_;
  at::Tensor gradient_before_;
  std::vector<std::pair<std::int64_t, at::Tensor>> kept_;  // Indices, by dimension.
};

class ModuleCut {
 public:
  // Changes nothing. Lifetime: `module` outlives it. Errors: misuse for a tensor or indices that do
  // not exist, and for a parameter on whose size autograd or a DistributedDataParallel relies.
  ModuleCut(torch::nn::Module& module, const std::vector<ChannelCut>& cuts);

  // Also adapts options of layers, such as out_channels. Gradients of cut tensors become undefined.
  void apply() const;

  void undo() const;

  // Cuts the optimizer's state for these parameters, such as momentum.
  void cut_state(torch::optim::Optimizer& optimizer) const;

 private:
  struct CutLayer {
    std::function<void()> adopt_sizes;
    std::function<void()> restore_sizes;
  };

  void add_layers();

  torch::nn::Module& module_;
  std::vector<TensorCut> tensors_;
  std::vector<CutLayer> layers_;
};

// Errors: unsupported for an optimizer whose state cannot be read, or is spread over ranks.
void require_readable_state(torch::optim::Optimizer& optimizer);

}  // namespace lockstep::prune
