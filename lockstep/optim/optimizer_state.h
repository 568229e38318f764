// One parameter's state in LARS, LAMB and LibTorch's optimizers except LBFGS, in a common form.
// Converts it to and from the state of a Shard (sharded_optimizer.h).

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/optim/sharded_optimizer.h"

namespace lockstep {

// Members of one state by name in archives. Tensors have the parameter's shape; unneeded ones are
// undefined.
struct OptimizerStateParts {
  std::string_view optimizer;  // For example "Adam", also for derived classes.
  std::vector<std::pair<std::string_view, at::Tensor*>> tensors;
  std::vector<std::pair<std::string_view, std::int64_t*>> integers;
};

// Makes a sparse tensor (SGD's momentum) dense in `state` itself, so that further steps equal those
// of a resumed training bit for bit. Lifetime: the result points into `state`. Errors: unsupported
// for other optimizers' states.
LOCKSTEP_API OptimizerStateParts parts_of(torch::optim::OptimizerParamState& state);

// Creates an empty state of the type that `optimizer` uses. Errors: as parts_of().
LOCKSTEP_API std::unique_ptr<torch::optim::OptimizerParamState> make_param_state(
    const torch::optim::Optimizer& optimizer);

// A one-dimensional view of the shard's elements of `tensor`, which has `parameter`'s strides.
// Errors: unsupported for a parameter with gaps in memory.
at::Tensor fragment_of(const at::Tensor& tensor, const Shard& shard, const at::Tensor& parameter);

std::size_t encoded_size(torch::optim::OptimizerParamState& prototype);

// Returns `count` tensors: one with the integers, then the state's tensors. All are undefined for
// a null `state`.
std::vector<at::Tensor> encode(torch::optim::OptimizerParamState* state, std::size_t count);

// Writes `encoded`, the state of `shard`, into the whole `parameter`'s. Errors: unsupported for a
// fragment of a parameter with gaps in memory.
void assemble(std::span<const at::Tensor> encoded, const Shard& shard, const at::Tensor& parameter,
              torch::optim::OptimizerParamState& whole);

// The state of `shard`, cut from `whole`, `parameter`'s. `stepped` is the parameter itself, whose
// state is returned unchanged, or a flat view of the shard's memory. Errors: as assemble(); misuse
// if a tensor and the parameter have different shapes.
std::unique_ptr<torch::optim::OptimizerParamState> cut(
    std::unique_ptr<torch::optim::OptimizerParamState> whole, const Shard& shard,
    const at::Tensor& parameter, const at::Tensor& stepped);

}  // namespace lockstep
