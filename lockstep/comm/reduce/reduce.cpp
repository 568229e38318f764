// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/reduce/reduce.h"

#include "lockstep/comm/reduce/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace lockstep {

#if defined(__x86_64__)
namespace {

bool has_f16c() {  // Clang 16 has no __builtin_cpu_supports() for it.
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

}  // namespace
#endif

std::span<const kernels::Choose> kernels::runnable() {
#if defined(__x86_64__)
  static constexpr Choose all[] = {plain::reduce_function, avx2::reduce_function,
                                   avx512::reduce_function};
  static const std::size_t count = [] {
    if (!__builtin_cpu_supports("avx2") || !has_f16c()) return 1;
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") ? 3 : 2;
  }();
  return {all, count};
#else
  static constexpr Choose all[] = {plain::reduce_function};
  return all;
#endif
}

ReduceFunction reduce_function(DType dtype, ReduceOp op) {
  return kernels::runnable().back()(dtype, op);
}

}  // namespace lockstep
