// Element-wise reduction of several arrays into one or several: the arithmetic of all_reduce,
// reduce and reduce_scatter.
//
// Floats: float16 and bfloat16 are combined in float32 and rounded once, to nearest even; a NaN
//   becomes a quiet one. Bitwise operations have no meaning.
// Integers: they wrap, as in LibTorch. An average has no meaning.
// Booleans: any byte but 0 is true, results are 0 and 1. Sum, max and bor are "or"; product, min
//   and band are "and". An average has no meaning.
// Every instruction set gives the same bits, but for those inside a NaN.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "lockstep/comm/core/dtype.h"
#include "lockstep/comm/core/reduce_op.h"

namespace lockstep {

// Combines element i of all sources, at least one, in their order, and writes the result to element
// i of all targets, for i < count. An average divides by source_count. A target may be one of the
// sources; arrays must not overlap otherwise. No alignment is needed.
using ReduceFunction = void (*)(const std::byte* const* sources, int source_count,
                                std::byte* const* targets, int target_count, std::size_t count);

// The fastest that this processor can run: AVX-512, AVX2 or neither. Null when the pair has no
// meaning.
ReduceFunction reduce_function(DType dtype, ReduceOp op);

}  // namespace lockstep
