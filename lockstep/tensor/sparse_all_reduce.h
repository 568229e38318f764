// Sums of sparse tensors, such as the gradients of an Embedding.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// A sparse tensor without elements, with the shape and type of `like`.
at::Tensor empty_sparse(const at::Tensor& like, std::int64_t sparse_dim = 1);

// Collective. Replaces a sparse tensor by the coalesced sum of all ranks' ones, or by their mean.
// They may have elements at different indices. The sum of an element has the ranks' order. Costs
// three all_gathers: of the numbers of elements, their indices, and their values.
// Errors: unsupported for other reductions; mismatch for tensors of different shapes or types, and
// for different numbers of sparse dimensions unless one has no elements; otherwise as
// ProcessGroup::all_gather()'s.
void sparse_all_reduce(const at::Tensor& tensor, ReduceOp op, const ProcessGroup& group,
                       const CallOptions& options);

}  // namespace lockstep
