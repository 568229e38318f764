// The state of LibTorch's optimizers, LARS and LAMB for one parameter, in a common form, and its
// conversion to and from the state of shards.

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

// The members of one state under their names in archives. Tensors have the parameter's shape, and
// are undefined if the options do not need them.
struct OptimizerStateParts {
  std::string_view optimizer;  // For example "Adam", also for derived classes.
  std::vector<std::pair<std::string_view, at::Tensor*>> tensors;
  std::vector<std::pair<std::string_view, std::int64_t*>> integers;
};

// Makes a sparse tensor (SGD's momentum for sparse gradients) dense in `state` itself, so that
// further steps have the same bits as a resumed training. Lifetime: the result points into `state`.
// Errors: unsupported, with its name, for a state of an optimizer that optimizer_state() does not
// support.
OptimizerStateParts parts_of(torch::optim::OptimizerParamState& state);

// Creates an empty state of the type that `optimizer` uses. Errors: unsupported, with its name, for
// others.
std::unique_ptr<torch::optim::OptimizerParamState> make_param_state(
    const torch::optim::Optimizer& optimizer);

// The shard's elements of `tensor`, which has the layout of `parameter`, as a one-dimensional view.
// Errors: unsupported for a parameter with gaps in memory.
at::Tensor fragment_of(const at::Tensor& tensor, const Shard& shard, const at::Tensor& parameter);

std::size_t encoded_size(torch::optim::OptimizerParamState& prototype);

// Returns `count` tensors: the state's integers in one, then its tensors. All are undefined for a
// null `state`.
std::vector<at::Tensor> encode(torch::optim::OptimizerParamState* state, std::size_t count);

// Writes `encoded`, the state of `shard`, into that of the whole `parameter`. Errors: unsupported
// for a fragment of a parameter with gaps in memory.
void assemble(std::span<const at::Tensor> encoded, const Shard& shard, const at::Tensor& parameter,
              torch::optim::OptimizerParamState& whole);

// Creates the state of `shard` from that of the whole `parameter`. If `stepped` is the parameter
// itself, returns the state unchanged. Otherwise `stepped` is a flat view of the shard's memory.
// Errors: as assemble(); misuse if a tensor has another shape than the parameter.
std::unique_ptr<torch::optim::OptimizerParamState> cut(
    std::unique_ptr<torch::optim::OptimizerParamState> whole, const Shard& shard,
    const at::Tensor& parameter, const at::Tensor& stepped);

}  // namespace lockstep
