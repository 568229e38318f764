// What an optimizer remembers of a part of a parameter, between the whole and the part.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/optim/shard.h"

namespace lockstep {

// The shard's elements of `tensor`, which is laid out as `parameter`: a view of one dimension.
// Errors: unsupported for a parameter that has gaps in memory.
at::Tensor fragment_of(const at::Tensor& tensor, const Shard& shard, const at::Tensor& parameter);

// How many tensors a shard's state takes when it travels.
std::size_t encoded_size(torch::optim::OptimizerParamState& prototype);

// `count` tensors: the state's integers, as one, then its tensors; all undefined where `state` is
// null.
std::vector<at::Tensor> encode(torch::optim::OptimizerParamState* state, std::size_t count);

// Writes what encode() made of `shard` into the state of the whole `parameter`.
// Errors: unsupported for a fragment of a parameter that has gaps in memory.
void assemble(std::span<const at::Tensor> encoded, const Shard& shard, const at::Tensor& parameter,
              torch::optim::OptimizerParamState& whole);

// Makes of the state of a whole `parameter` that of `shard`, which is stepped as `stepped`: the
// parameter itself, whose state is then the same one, of any type, or a flat view of its memory.
// Errors: as assemble(); misuse when a tensor has another shape than the parameter.
std::unique_ptr<torch::optim::OptimizerParamState> cut(
    std::unique_ptr<torch::optim::OptimizerParamState> whole, const Shard& shard,
    const at::Tensor& parameter, const at::Tensor& stepped);

}  // namespace lockstep
