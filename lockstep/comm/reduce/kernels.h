// The reductions as compiled for each instruction set; reduce_function() chooses among them.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/reduce/reduce.h"

namespace lockstep::kernels {

namespace plain {
ReduceFunction reduce_function(DType dtype, ReduceOp op);
}
namespace avx2 {
ReduceFunction reduce_function(DType dtype, ReduceOp op);
}
namespace avx512 {
ReduceFunction reduce_function(DType dtype, ReduceOp op);
}

}  // namespace lockstep::kernels
