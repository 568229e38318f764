// What Adam, AdamW and SGD share around ATen's fused kernels: what these can step, and what one
// call of them works on.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace lockstep::fused {

using Group = torch::optim::OptimizerParamGroup;
// Of each parameter, found by its TensorImpl.
using States = ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>;

// The loss of `closure`, which runs with gradients enabled; undefined when there is no closure.
torch::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure);

// Looks at all parameters that have a gradient, so that a step is refused before it changed
// anything. `optimizer` begins the message.
// Errors: unsupported when a gradient is sparse, or a parameter not floating-point, or not dense in
// memory; misuse when a gradient has another shape than its parameter.
void require_fusible(const std::vector<Group>& groups, std::string_view optimizer);

// Errors: misuse when `tensor`, the state of `parameter`, is undefined or has another shape.
void require_state(const at::Tensor& parameter, const at::Tensor& tensor);

// Makes `tensor`, the gradient or state of `parameter`, a copy with the parameter's strides when it
// has others: the kernels walk the memory of both side by side and heed neither strides nor sizes.
// It has the parameter's shape.
void lay_out_as(const at::Tensor& parameter, at::Tensor& tensor);

// What one call of a kernel works on; optimizers add the state. All of a batch have one type,
// device and step, or what stands for the step.
struct Batch {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  std::int64_t step = 0;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;

  bool takes(const at::Tensor& parameter, std::int64_t at_step) const;
  void add(const at::Tensor& parameter);

  // To be called after the kernel, which does not tell autograd that it has written to them.
  void note_written() const;
};

// The batch for `parameter`, with the parameter and its gradient added. There are few: one for each
// type, and more only where some parameters had no gradient in some steps.
template <class B>
B& add_to_batch(std::vector<B>& batches, const at::Tensor& parameter, std::int64_t step) {
  auto batch = std::find_if(batches.begin(), batches.end(),
                            [&](const B& each) { return each.takes(parameter, step); });
  if (batch == batches.end()) {
    batch = batches.emplace(batch);
    batch->dtype = parameter.scalar_type();
    batch->device = parameter.device();
    batch->step = step;
  }
  batch->add(parameter);
  return *batch;
}

}  // namespace lockstep::fused
