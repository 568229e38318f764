// Sums of sparse tensors, such as an Embedding's gradients.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Without elements, with the shape and type of `like`.
at::Tensor empty_sparse(const at::Tensor& like, std::int64_t sparse_dim = 1);

// Replaces a sparse tensor by the coalesced sum or mean of all ranks' tensors, added in rank order.
// Indices may differ between ranks. Collective: three all_gathers, of element counts, indices and
// values.
// Errors: those of ProcessGroup::all_gather(). Unsupported for other reductions. Mismatch for
// different shapes, types, or numbers of sparse dimensions of tensors with elements.
void sparse_all_reduce(const at::Tensor& tensor, ReduceOp op, const ProcessGroup& group,
                       const CallOptions& options);

}  // namespace lockstep
