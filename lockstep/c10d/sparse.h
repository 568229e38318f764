// Sums of sparse tensors, such as the gradients of an Embedding.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep::c10d {

// Collective. Replaces a sparse tensor by the sum of all ranks' ones, or by their mean. They may
// have values at different places. Costs three all_gathers: of the numbers of values, their places,
// and the values.
// Errors: unsupported for other reductions; mismatch for tensors of different shapes or types;
// otherwise as ProcessGroup::all_gather()'s.
void sparse_all_reduce(const at::Tensor& tensor, ReduceOp op, const ProcessGroup& group,
                       const CallOptions& options);

}  // namespace lockstep::c10d
