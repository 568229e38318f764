// Element-wise reduction of several arrays into one or several.
//
// DType and ReduceOp (core/buffer.h) define the arithmetic. A NaN becomes a quiet one. An integer
// average divides the wrapped sum, as in NCCL. For booleans, max and bor are "or"; min and band are
// "and". All instruction sets give the same bits, except inside a NaN.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "lockstep/comm/core/buffer.h"

namespace lockstep::comm {

// Combines element i of all sources, in order, into element i of all targets, for i < count. There
// is at least one source; an average divides by source_count. A target may be a source; any other
// overlap is forbidden. Any alignment.
using ReduceFunction = void (*)(const std::byte* const* sources, int source_count,
                                std::byte* const* targets, int target_count, std::size_t count);

// The fastest kernel for this processor. Null for an unsupported pair.
ReduceFunction reduce_function(DType dtype, ReduceOp op);

// Makes averages of sums. Multiplies floats by 1 / ranks; rounds float16 and bfloat16 once more.
// Divides integers and truncates. No booleans.
void divide_sums(const Buffer& sums, int ranks);

}  // namespace lockstep::comm

// Compiled for each instruction set; reduce_function() chooses among them.
namespace lockstep::comm::kernels {

using Choose = ReduceFunction (*)(DType dtype, ReduceOp op);

namespace plain {
ReduceFunction reduce_function(DType dtype, ReduceOp op);
}
namespace avx2 {
ReduceFunction reduce_function(DType dtype, ReduceOp op);
}
namespace avx512 {
ReduceFunction reduce_function(DType dtype, ReduceOp op);
}

// The kernels that this processor can run, slowest first.
std::span<const Choose> runnable();

}  // namespace lockstep::comm::kernels
