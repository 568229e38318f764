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
  uint8 = 4,     // Moved, never reduced: bytes.
};

LOCKSTEP_API std::string_view name(DType dtype);

// Bytes of one element.
LOCKSTEP_API std::size_t size_of(DType dtype);

}  // namespace lockstep
