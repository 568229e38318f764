// Common parts of optimizers: param group options, closures, and batches for ATen's fused kernels.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace lockstep::optim {

using ParamGroup = torch::optim::OptimizerParamGroup;
// The state of each parameter, by the address of its TensorImpl.
using ParamStates = ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>;

// Runs `closure` with gradients enabled. The result is undefined without a closure.
torch::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure);

// Sets the options of `groups` to `given`. LibTorch's add_param_group() does so for its own
// optimizers only, and otherwise takes the defaults. Errors: misuse for given options of another
// type than the defaults.
void take_options(const std::vector<ParamGroup>& given,
                  const torch::optim::OptimizerOptions& defaults, std::vector<ParamGroup>& groups);

void drop_repeated(std::vector<ParamGroup>& groups);

// Checks all parameters that have a gradient, so that a refused step changes nothing. Messages
// begin with `optimizer`. Errors: unsupported if a gradient is sparse, or a parameter is not
// floating-point or not dense in memory. misuse if the shapes of a gradient and its parameter
// differ.
void require_fusible(const std::vector<ParamGroup>& groups, std::string_view optimizer);

// Errors: misuse if `tensor`, part of the state of `parameter`, is undefined or has another shape.
void require_state(const at::Tensor& parameter, const at::Tensor& tensor);

// Replaces `tensor`, a gradient or state with the shape of `parameter`, by a copy with the
// parameter's strides if they differ: the kernels ignore strides.
void lay_out_as(const at::Tensor& parameter, at::Tensor& tensor);

// The tensors of one kernel call, with the same type, device and step. Optimizers add the state.
struct KernelBatch {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  std::int64_t step = 0;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;

  bool takes(const at::Tensor& parameter, std::int64_t at_step) const;
  void add(const at::Tensor& parameter);

  // Call after the kernel, which does not notify autograd that it wrote the parameters.
  void note_written() const;
};

// Adds the parameter and its gradient to a batch and returns it. There is one batch per type, and
// more only if some parameters had no gradient in some steps.
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

}  // namespace lockstep::optim
