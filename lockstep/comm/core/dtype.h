// The element types of collectives.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "lockstep/base/api.h"

namespace lockstep {

// Sums and products of integers wrap, as in LibTorch.
// Part of the engine ABI: values are frozen, new ones are added at the end.
enum class DType : std::uint8_t {
  float32 = 0,
  float64 = 1,
  int64 = 2,
  bfloat16 = 3,  // Summed in float32 and rounded once, to nearest even.
  uint8 = 4,
  float16 = 5,  // Summed like bfloat16.
  int8 = 6,
  int16 = 7,
  int32 = 8,
  uint16 = 9,
  uint32 = 10,
  uint64 = 11,
  boolean = 12,  // One byte; every value but 0 is true. A sum is "or", a product is "and".
};

constexpr int dtype_count = 13;

// The DType of a C++ type; does not compile for a type without one.
template <class T>
constexpr DType dtype_of = [] {
  if constexpr (std::is_same_v<T, bool>)
    return DType::boolean;
  else if constexpr (std::is_same_v<T, float>)
    return DType::float32;
  else if constexpr (std::is_same_v<T, double>)
    return DType::float64;
  else {
    static_assert(std::is_integral_v<T> && sizeof(T) <= 8, "there is no DType of this type");
    constexpr DType of_signed[] = {DType::int8, DType::int16, DType::int32, DType::int64};
    constexpr DType of_unsigned[] = {DType::uint8, DType::uint16, DType::uint32, DType::uint64};
    constexpr int log2 = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    return std::is_signed_v<T> ? of_signed[log2] : of_unsigned[log2];
  }
}();

LOCKSTEP_API std::string_view name(DType dtype);

// Bytes of one element.
LOCKSTEP_API std::size_t size_of(DType dtype);

}  // namespace lockstep
