// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/reduce/average.h"

#include <algorithm>
#include <array>
#include <vector>

#include "lockstep/comm/reduce/reduce.h"

namespace lockstep {
namespace {

template <class T>
void multiply(void* data, std::size_t count, int ranks) {
  const T factor = T{1} / static_cast<T>(ranks);
  auto* const values = static_cast<T*>(data);
  for (std::size_t i = 0; i < count; ++i) values[i] *= factor;
}

// Averages the sum with zeros: the kernels know the rounding of these types.
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

void divide_sums(const Buffer& sums, int ranks) {
  if (sums.dtype == DType::float32) return multiply<float>(sums.data, sums.count, ranks);
  if (sums.dtype == DType::float64) return multiply<double>(sums.data, sums.count, ranks);
  average_with_zeros(sums, ranks);
}

}  // namespace lockstep
