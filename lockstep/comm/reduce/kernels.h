// The reductions compiled for each instruction set; reduce_function() chooses among them.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "lockstep/comm/reduce/reduce.h"

namespace lockstep::kernels {

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

// Returns those that this processor can run, slowest first.
std::span<const Choose> runnable();

}  // namespace lockstep::kernels
