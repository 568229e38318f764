// Sums of sparse tensors, such as the gradients of an Embedding.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// A sparse tensor without elements, with the shape and type of `like`.
at::Tensor empty_sparse(const at::Tensor& like, std::int64_t sparse_dim = 1);

// Replaces a sparse tensor by the coalesced sum or mean of all ranks' tensors, in rank order. The
// ranks may have elements at different indices. Collective: three all_gathers, of numbers of
// elements, indices and values.
// Errors: as ProcessGroup::all_gather()'s. Unsupported for other reductions. Mismatch for different
// shapes or types. Also for different numbers of sparse dimensions, unless one tensor has no
// elements.
void sparse_all_reduce(const at::Tensor& tensor, ReduceOp op, const ProcessGroup& group,
                       const CallOptions& options);

}  // namespace lockstep
