// A part of a parameter, and what an optimizer remembers of it, between the whole and the part.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace lockstep {

// Elements [begin, end) of a parameter in the order of its memory, and the rank that steps them.
struct Shard {
  std::size_t parameter = 0;  // Counted over all param groups.
  std::int64_t begin = 0;
  std::int64_t end = 0;
  int owner = 0;
};

// How many tensors a shard's state takes when it travels.
std::size_t encoded_size(torch::optim::OptimizerParamState& prototype);

// `count` tensors: the state's integers, as one, then its tensors; all undefined where `state` is null.
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
