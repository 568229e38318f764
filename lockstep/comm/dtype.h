// The types of elements that collectives work on.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/comm/api.h"

namespace lockstep {

// Part of the engine ABI: values are frozen, new ones are added at the end.
enum class DType : std::uint8_t {
  float32 = 0,
  float64 = 1,
  int64 = 2,
  bfloat16 = 3,  // Summed in float32 and rounded once, to nearest even.
  uint8 = 4,
  float16 = 5,  // As bfloat16.
  int8 = 6,
  int16 = 7,
  int32 = 8,
  uint16 = 9,
  uint32 = 10,
  uint64 = 11,
  boolean = 12,  // One byte, 0 or 1: a sum is "or", a product is "and".
};

constexpr int dtype_count = 13;

LOCKSTEP_API std::string_view name(DType dtype);

// Bytes of one element.
LOCKSTEP_API std::size_t size_of(DType dtype);

}  // namespace lockstep
