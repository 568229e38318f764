// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/reduce/reduce.h"

#include <algorithm>
#include <array>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

// The kernels without instructions that some processors lack.
#define LOCKSTEP_KERNELS plain
#include "lockstep/comm/reduce/loops.h"

namespace lockstep::comm {
namespace {

#if defined(__x86_64__)
bool has_f16c() {  // Clang 16 has no __builtin_cpu_supports() for it.
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

template <class T>
void multiply(void* data, std::size_t count, int ranks) {
  const T factor = T{1} / static_cast<T>(ranks);
  auto* const values = static_cast<T*>(data);
  for (std::size_t i = 0; i < count; ++i) values[i] *= factor;
}

// Averages the sums with zeros: the kernels implement all types' rounding.
void average_with_zeros(const Buffer& sums, int ranks) {
  static constexpr std::array<std::byte, 4096> zeros{};
  std::vector<const std::byte*> sources(static_cast<std::size_t>(ranks), zeros.data());
  const std::size_t each = zeros.size() / size_of(sums.dtype);
  for (std::size_t begin = 0; begin < sums.count; begin += each) {
    std::byte* const at = static_cast<std::byte*>(sums.data) + begin * size_of(sums.dtype);
    sources[0] = at;
    reduce_function(sums.dtype, ReduceOp::average)(sources.data(), ranks, &at, 1,
                                                   std::min(each, sums.count - begin));
  }
}

}  // namespace

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

void divide_sums(const Buffer& sums, int ranks) {
  if (sums.dtype == DType::float32) return multiply<float>(sums.data, sums.count, ranks);
  if (sums.dtype == DType::float64) return multiply<double>(sums.data, sums.count, ranks);
  average_with_zeros(sums, ranks);
}

}  // namespace lockstep::comm
