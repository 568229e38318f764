// SPDX-License-Identifier: Apache-2.0
#include "tests/engines/serial.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <type_traits>

namespace lockstep::test {
namespace {

struct Boolean {
  std::uint8_t byte;
};

// 0 to 3; one less where there are negative numbers.
template <class T>
int value(std::size_t place, int seed) {
  const int plain =
      static_cast<int>((place * 7 + static_cast<std::size_t>(seed) * 5 + place / 16) % 4);
  if constexpr (std::numeric_limits<T>::is_signed) return plain - 1;
  return plain;
}

template <class T>
T element(std::size_t place, int seed) {
  return static_cast<T>(value<T>(place, seed));
}

template <>
Boolean element(std::size_t place, int seed) {
  return {static_cast<std::uint8_t>(value<Boolean>(place, seed))};
}

// In double for floating-point types, whose zeros have a sign.
double combine(ReduceOp op, double a, double b) {
  if (op == ReduceOp::sum) return a + b;
  if (op == ReduceOp::product) return a * b;
  return op == ReduceOp::min ? std::min(a, b) : std::max(a, b);
}

long long combine(ReduceOp op, long long a, long long b) {
  switch (op) {
    case ReduceOp::sum:
      return a + b;
    case ReduceOp::product:
      return a * b;
    case ReduceOp::min:
      return std::min(a, b);
    case ReduceOp::max:
      return std::max(a, b);
    case ReduceOp::band:
      return a & b;
    case ReduceOp::bor:
      return a | b;
    default:
      return a ^ b;
  }
}

bool combine_booleans(ReduceOp op, bool a, bool b) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::max:
    case ReduceOp::bor:
      return a || b;
    case ReduceOp::bxor:
      return a != b;
    default:
      return a && b;
  }
}

template <class T>
void combine_at(std::byte* to, ReduceOp op, std::size_t place, int ranks) {
  using Wide = std::conditional_t<std::is_floating_point_v<T>, double, long long>;
  Wide result = value<T>(place, 0);
  for (int rank = 1; rank < ranks; ++rank)
    result = combine(op, result, static_cast<Wide>(value<T>(place, rank)));
  const T stored = static_cast<T>(result);
  std::memcpy(to, &stored, sizeof stored);
}

template <>
void combine_at<Boolean>(std::byte* to, ReduceOp op, std::size_t place, int ranks) {
  bool result = value<Boolean>(place, 0) != 0;
  for (int rank = 1; rank < ranks; ++rank)
    result = combine_booleans(op, result, value<Boolean>(place, rank) != 0);
  *to = static_cast<std::byte>(result);
}

// act.template operator()<T>() for the type of `dtype`; float16 and bfloat16 are only moved.
template <class Act>
auto with_type(DType dtype, Act act) {
  switch (dtype) {
    case DType::float32:
      return act.template operator()<float>();
    case DType::float64:
      return act.template operator()<double>();
    case DType::int8:
      return act.template operator()<std::int8_t>();
    case DType::int16:
      return act.template operator()<std::int16_t>();
    case DType::int32:
      return act.template operator()<std::int32_t>();
    case DType::int64:
      return act.template operator()<std::int64_t>();
    case DType::uint8:
      return act.template operator()<std::uint8_t>();
    case DType::uint16:
    case DType::float16:
    case DType::bfloat16:
      return act.template operator()<std::uint16_t>();
    case DType::uint32:
      return act.template operator()<std::uint32_t>();
    case DType::uint64:
      return act.template operator()<std::uint64_t>();
    case DType::boolean:
      return act.template operator()<Boolean>();
  }
  throw std::invalid_argument("an unknown dtype");
}

}  // namespace

Bytes elements(DType dtype, std::size_t count, int seed) {
  return with_type(dtype, [&]<class T>() {
    Bytes all(count * sizeof(T));
    for (std::size_t i = 0; i < count; ++i) {
      const T one = element<T>(i, seed);
      std::memcpy(all.data() + i * sizeof(T), &one, sizeof one);
    }
    return all;
  });
}

bool can_combine(DType dtype) { return dtype != DType::float16 && dtype != DType::bfloat16; }

Bytes combined(DType dtype, ReduceOp op, std::size_t count, int ranks) {
  return with_type(dtype, [&]<class T>() {
    Bytes all(count * sizeof(T));
    for (std::size_t i = 0; i < count; ++i) combine_at<T>(all.data() + i * sizeof(T), op, i, ranks);
    return all;
  });
}

bool are_equal(DType dtype, const std::byte* found, const Bytes& expected) {
  if (dtype != DType::boolean) return std::equal(expected.begin(), expected.end(), found);
  return std::equal(expected.begin(), expected.end(), found, [](std::byte a, std::byte b) {
    return (a != std::byte{0}) == (b != std::byte{0});
  });
}

void append(Bytes& to, const Bytes& more) { to.insert(to.end(), more.begin(), more.end()); }

}  // namespace lockstep::test
