// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/shard_state.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/optim/fused_step.h"
#include "lockstep/optim/optimizer_state.h"

namespace lockstep {
namespace {

using torch::optim::OptimizerParamState;

bool is_whole(const Shard& shard, const at::Tensor& parameter) {
  return shard.begin == 0 && shard.end == parameter.numel();
}

void assemble(const at::Tensor& piece, const Shard& shard, const at::Tensor& parameter,
              at::Tensor& whole) {
  if (!piece.defined()) return;
  if (!whole.defined())
    whole = at::zeros_like(parameter, piece.options().device(parameter.device()),
                           at::MemoryFormat::Preserve);
  if (is_whole(shard, parameter) && piece.sizes() == parameter.sizes())
    whole.copy_(piece);
  else
    fragment_of(whole, shard, parameter).copy_(piece);
}

}  // namespace

at::Tensor fragment_of(const at::Tensor& tensor, const Shard& shard, const at::Tensor& parameter) {
  if (!parameter.is_non_overlapping_and_dense())
    throw Error(Fault::unsupported,
                "a parameter that is a view with gaps in memory has no fragments");
  return tensor.as_strided({tensor.numel()}, {1}).slice(0, shard.begin, shard.end);
}

std::size_t encoded_size(OptimizerParamState& prototype) {
  return 1 + parts_of(prototype).tensors.size();
}

std::vector<at::Tensor> encode(OptimizerParamState* state, std::size_t count) {
  if (state == nullptr) return std::vector<at::Tensor>(count);
  const OptimizerStateParts parts = parts_of(*state);
  std::vector<std::int64_t> integers;
  for (const auto& [name, integer] : parts.integers) integers.push_back(*integer);
  std::vector<at::Tensor> tensors{at::tensor(integers, at::kLong)};
  for (const auto& [name, tensor] : parts.tensors) tensors.push_back(*tensor);
  return tensors;
}

void assemble(std::span<const at::Tensor> encoded, const Shard& shard, const at::Tensor& parameter,
              OptimizerParamState& whole) {
  const OptimizerStateParts parts = parts_of(whole);
  check(encoded.size() == 1 + parts.tensors.size() &&
            encoded[0].numel() == static_cast<std::int64_t>(parts.integers.size()),
        "the state of a shard is not that of this optimizer");
  for (std::size_t i = 0; i < parts.integers.size(); ++i)
    *parts.integers[i].second = encoded[0].data_ptr<std::int64_t>()[i];
  for (std::size_t i = 0; i < parts.tensors.size(); ++i)
    assemble(encoded[i + 1], shard, parameter, *parts.tensors[i].second);
}

std::unique_ptr<OptimizerParamState> cut(std::unique_ptr<OptimizerParamState> whole,
                                         const Shard& shard, const at::Tensor& parameter,
                                         const at::Tensor& stepped) {
  if (stepped.is_same(parameter)) return whole;
  auto piece = whole->clone();
  for (const auto& [name, tensor] : parts_of(*piece).tensors) {
    if (!tensor->defined()) continue;
    fused::require_state(parameter, *tensor);
    fused::lay_out_as(parameter, *tensor);
    *tensor = fragment_of(*tensor, shard, parameter).clone();
  }
  return piece;
}

}  // namespace lockstep
