// Common parts of optimizers: param group options, closures, batches for ATen's fused kernels.

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
// By the address of the parameter's TensorImpl.
using ParamStates = ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>;

// Runs `closure` with gradients enabled. Undefined without a closure.
torch::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure);

// Sets the options of `groups` to those of `given`. LibTorch's add_param_group() does so only for
// its own optimizers; others get the defaults. Errors: misuse for another type than that of the
// defaults.
void take_options(const std::vector<ParamGroup>& given,
                  const torch::optim::OptimizerOptions& defaults, std::vector<ParamGroup>& groups);

// Keeps each parameter of a group once.
void drop_repeated(std::vector<ParamGroup>& groups);

// Checks all parameters, so that a refused step changes nothing. Messages begin with `optimizer`.
// Errors: unsupported for a sparse gradient, and a parameter that is not floating-point or not
// dense in memory. Misuse for a gradient of another shape, and a parameter on meta or in two
// groups.
void require_fusible(const std::vector<ParamGroup>& groups, std::string_view optimizer);

// `tensor` is part of the state. Errors: misuse if it is undefined or has another shape.
void require_state(const at::Tensor& parameter, const at::Tensor& tensor);

// Replaces `tensor`, a gradient or state, by a copy with the parameter's strides if they differ:
// the kernels ignore strides.
void lay_out_as(const at::Tensor& parameter, at::Tensor& tensor);

// Tensors of one kernel call, with one type, device and step. Optimizers add the state.
struct KernelBatch {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  std::int64_t step = 0;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;

  bool takes(const at::Tensor& parameter, std::int64_t at_step) const;
  void add(const at::Tensor& parameter);

  // Call after the kernel, which does not report its writes to autograd.
  void note_written() const;
};

// Adds the parameter and its gradient to a batch and returns it. Parameters of one type, device and
// `step` share a batch.
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
