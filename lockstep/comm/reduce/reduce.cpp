// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/reduce/reduce.h"

#include "lockstep/comm/reduce/kernels.h"

namespace lockstep {

ReduceFunction reduce_function(DType dtype, ReduceOp op) {
#if defined(__x86_64__)
  static const auto choose =
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
          ? kernels::avx512::reduce_function
      : __builtin_cpu_supports("avx2") ? kernels::avx2::reduce_function
                                       : kernels::plain::reduce_function;
  return choose(dtype, op);
#else
  return kernels::plain::reduce_function(dtype, op);
#endif
}

}  // namespace lockstep
