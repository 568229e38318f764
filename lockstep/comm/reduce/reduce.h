// Element-wise reduction of several arrays into several arrays: the arithmetic of all_reduce.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "lockstep/comm/dtype.h"
#include "lockstep/comm/operation.h"

namespace lockstep {

// Combines element i of all `ranks` sources, in the order of the sources, and writes the result
// to element i of all `ranks` targets, for i < count. A target may be one of the sources; arrays
// must not overlap otherwise. No alignment is needed.
using ReduceFunction = void (*)(const std::byte* const* sources, std::byte* const* targets,
                                int ranks, std::size_t count);

// The fastest that this processor can run: AVX-512, AVX2 or neither. Null when the pair has no
// meaning (the average of integers, any reduction of bytes).
ReduceFunction reduce_function(DType dtype, ReduceOp op);

}  // namespace lockstep
