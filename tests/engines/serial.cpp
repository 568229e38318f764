// SPDX-License-Identifier: Apache-2.0
#include "tests/engines/serial.h"

#include <algorithm>
#include <concepts>
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

// Returns 0 to 3, or -1 to 2 for types with negative numbers.
template <class T>
int small(std::size_t place, int seed) {
  const int plain =
      static_cast<int>((place * 7 + static_cast<std::size_t>(seed) * 5 + place / 16) % 4);
  return std::numeric_limits<T>::is_signed ? plain - 1 : plain;
}

template <class T>
T element(std::size_t place, int seed) {
  const T value = static_cast<T>(small<T>(place, seed));
  if constexpr (std::is_integral_v<T>)
    if (place % 5 == 4) return static_cast<T>(std::numeric_limits<T>::max() - (value & 3));
  return value;
}

template <>
Boolean element(std::size_t place, int seed) {
  return {static_cast<std::uint8_t>(small<Boolean>(place, seed))};
}

template <std::floating_point T>
T combine(ReduceOp op, T a, T b) {
  if (op == ReduceOp::sum) return a + b;
  if (op == ReduceOp::product) return a * b;
  return op == ReduceOp::min ? std::min(a, b) : std::max(a, b);
}

// Sums and products wrap.
template <std::integral T>
T combine(ReduceOp op, T a, T b) {
  const auto wide_a = static_cast<std::uint64_t>(a);
  const auto wide_b = static_cast<std::uint64_t>(b);
  switch (op) {
    case ReduceOp::sum:
      return static_cast<T>(wide_a + wide_b);
    case ReduceOp::product:
      return static_cast<T>(wide_a * wide_b);
    case ReduceOp::min:
      return std::min(a, b);
    case ReduceOp::max:
      return std::max(a, b);
    case ReduceOp::band:
      return static_cast<T>(a & b);
    case ReduceOp::bor:
      return static_cast<T>(a | b);
    default:
      return static_cast<T>(a ^ b);
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

Boolean combine(ReduceOp op, Boolean a, Boolean b) {
  return {static_cast<std::uint8_t>(combine_booleans(op, a.byte != 0, b.byte != 0))};
}

// Calls act.template operator()<T>() with the type of `dtype`; float16 and bfloat16 are only moved.
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
    for (std::size_t i = 0; i < count; ++i) {
      T result = element<T>(i, 0);
      for (int rank = 1; rank < ranks; ++rank) result = combine(op, result, element<T>(i, rank));
      std::memcpy(all.data() + i * sizeof(T), &result, sizeof result);
    }
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
