// Sums over ranks, in place in registered memory.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// The sum of the values that write(tensor) stores on each rank, in a new contiguous tensor, in the
// group's RegisteredPool if it has capacity. Collective: equal sizes and types.
// Requires: autograd is off. Errors: as ProcessGroup::all_reduce().
at::Tensor summed(at::IntArrayRef sizes, const at::TensorOptions& type, const ProcessGroup& group,
                  const CallOptions& options, c10::function_ref<void(const at::Tensor&)> write);

}  // namespace lockstep
