// Element-wise reduction of several arrays into one or several: the arithmetic of all_reduce,
// reduce and reduce_scatter.
//
// Floats: float16 and bfloat16 are combined in float32 and rounded once, to nearest even. A NaN
// becomes a quiet one. Bitwise operations are not supported.
// Integers: they wrap, as in LibTorch. An average is the wrapped sum, divided and truncated towards
// zero, as in NCCL.
// Booleans: any byte but 0 is true; results are 0 and 1. Sum, max and bor are "or"; product, min
// and band are "and". Averages are not supported. Every instruction set gives the same bits, except
// inside a NaN.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "lockstep/comm/core/buffer.h"

namespace lockstep::comm {

// Combines element i of all sources in order, and writes the result to element i of all targets,
// for i < count. There is at least one source; an average divides by source_count. A target may be
// one of the sources; any other overlap is forbidden. Arrays need no alignment.
using ReduceFunction = void (*)(const std::byte* const* sources, int source_count,
                                std::byte* const* targets, int target_count, std::size_t count);

// Returns the fastest kernel for this processor: AVX-512, AVX2 or plain. Null when the pair is not
// supported.
ReduceFunction reduce_function(DType dtype, ReduceOp op);

// Turns sums into averages. Multiplies floats by 1 / ranks; rounds float16 and bfloat16 once more.
// Divides integers by `ranks` and truncates. Booleans are not supported.
void divide_sums(const Buffer& sums, int ranks);

}  // namespace lockstep::comm

// The reductions compiled for each instruction set; reduce_function() chooses among them.
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

// Returns the kernels that this processor can run, slowest first.
std::span<const Choose> runnable();

}  // namespace lockstep::comm::kernels
