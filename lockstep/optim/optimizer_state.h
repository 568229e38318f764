// The state of LibTorch's optimizers, LARS and LAMB for one parameter, in a form common to all
// types. Converts it to and from the state of a parameter's shards.

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

#include "lockstep/optim/sharded_optimizer.h"

namespace lockstep {

// The members of one state under their names in archives, for reading and writing. Tensors have the
// parameter's shape; those that the optimizer's options do not need are undefined.
struct OptimizerStateParts {
  std::string_view optimizer;  // For example "Adam", also for derived classes.
  std::vector<std::pair<std::string_view, at::Tensor*>> tensors;
  std::vector<std::pair<std::string_view, std::int64_t*>> integers;
};

// A sparse tensor, SGD's momentum for sparse gradients, becomes dense in the state itself. Further
// steps then have the same bits as a training that is resumed from here.
// Lifetime: the result points into `state`.
// Errors: unsupported, with its name, for a state that does not belong to SGD, Adam, AdamW,
// Adagrad, RMSprop, LARS or LAMB.
OptimizerStateParts parts_of(torch::optim::OptimizerParamState& state);

// Creates an empty state of the type that `optimizer` uses.
// Errors: unsupported, with its name, for any other optimizer.
std::unique_ptr<torch::optim::OptimizerParamState> make_param_state(
    const torch::optim::Optimizer& optimizer);

// The shard's elements of `tensor`, which has the layout of `parameter`, as a one-dimensional view.
// Errors: unsupported for a parameter with gaps in memory.
at::Tensor fragment_of(const at::Tensor& tensor, const Shard& shard, const at::Tensor& parameter);

// Number of tensors that encode() needs for a shard's state.
std::size_t encoded_size(torch::optim::OptimizerParamState& prototype);

// Returns `count` tensors: the state's integers in one tensor, then its tensors. All are undefined
// if `state` is null.
std::vector<at::Tensor> encode(torch::optim::OptimizerParamState* state, std::size_t count);

// Writes `encoded`, the encoded state of `shard`, into the state of the whole `parameter`.
// Errors: unsupported for a fragment of a parameter with gaps in memory.
void assemble(std::span<const at::Tensor> encoded, const Shard& shard, const at::Tensor& parameter,
              torch::optim::OptimizerParamState& whole);

// Creates the state of `shard` from that of the whole `parameter`. If `stepped` is the parameter
// itself, returns the state unchanged, for any type. Otherwise `stepped` is a flat view of the
// shard's memory.
// Errors: as assemble(); misuse if a tensor has another shape than the parameter.
std::unique_ptr<torch::optim::OptimizerParamState> cut(
    std::unique_ptr<torch::optim::OptimizerParamState> whole, const Shard& shard,
    const at::Tensor& parameter, const at::Tensor& stepped);

}  // namespace lockstep
