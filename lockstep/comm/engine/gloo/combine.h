// Combines elements in Gloo's reductions: Gloo's own functions lose NaN in min and max.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "lockstep/comm/core/buffer.h"

namespace lockstep::comm::engines {

// out[i] = left[i] op right[i], for `count` elements; `out` may be one of the two.
using Combine = void (*)(void* out, const void* left, const void* right, std::size_t count);

// Integers wrap, as unsigned ones. Short ones must not be promoted to int.
template <class T>
auto wrapping(T value) {
  if constexpr (std::is_integral_v<T>) {
    return 1U * static_cast<std::make_unsigned_t<T>>(value);
  } else {
    return value;
  }
}

struct Sum {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(wrapping(a) + wrapping(b));
  }
};

struct Product {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(wrapping(a) * wrapping(b));
  }
};

// A NaN is not equal to itself, and is the result.
struct Min {
  template <class T>
  T operator()(T a, T b) const {
    return a < b || a != a ? a : b;  // NOLINT(misc-redundant-expression)
  }
};

struct Max {
  template <class T>
  T operator()(T a, T b) const {
    return a > b || a != a ? a : b;  // NOLINT(misc-redundant-expression)
  }
};

struct And {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};

struct Or {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};

struct Xor {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};

// --- Loops, which the compiler vectorises --------------------------------------------------------

template <class T, class Op>
void combine(void* out, const void* left, const void* right, std::size_t count) {
  auto* to = static_cast<T*>(out);
  const auto* a = static_cast<const T*>(left);
  const auto* b = static_cast<const T*>(right);
  for (std::size_t i = 0; i < count; ++i) to[i] = Op()(a[i], b[i]);
}

template <class T>
Combine combine_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return combine<T, Sum>;
    case ReduceOp::product:
      return combine<T, Product>;
    case ReduceOp::min:
      return combine<T, Min>;
    case ReduceOp::max:
      return combine<T, Max>;
    default:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    if (op == ReduceOp::band) return combine<T, And>;
    if (op == ReduceOp::bor) return combine<T, Or>;
    if (op == ReduceOp::bxor) return combine<T, Xor>;
  }
  return nullptr;
}

// Null for types that the core must combine: bool, and float16 and bfloat16, whose sums it rounds
// once.
inline Combine combine_for(std::uint8_t dtype, std::uint8_t reduce_op) {
  const auto op = static_cast<ReduceOp>(reduce_op);
  switch (static_cast<DType>(dtype)) {
    case DType::float32:
      return combine_of<float>(op);
    case DType::float64:
      return combine_of<double>(op);
    case DType::int8:
      return combine_of<std::int8_t>(op);
    case DType::int16:
      return combine_of<std::int16_t>(op);
    case DType::int32:
      return combine_of<std::int32_t>(op);
    case DType::int64:
      return combine_of<std::int64_t>(op);
    case DType::uint8:
      return combine_of<std::uint8_t>(op);
    case DType::uint16:
      return combine_of<std::uint16_t>(op);
    case DType::uint32:
      return combine_of<std::uint32_t>(op);
    case DType::uint64:
      return combine_of<std::uint64_t>(op);
    case DType::bfloat16:
    case DType::float16:
    case DType::boolean:
      return nullptr;
  }
  return nullptr;
}

}  // namespace lockstep::comm::engines
