// How reductions combine elements.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

// Stored in call signatures: values are frozen.
enum class ReduceOp : std::uint8_t {
  sum = 0,
  average = 1,  // Sum times 1 / world_size. Floating-point types only.
  product = 2,
  min = 3,  // NaN on any rank gives NaN, as in torch.minimum().
  max = 4,
  band = 5,  // Bitwise and. All three bitwise operations take only integers and bool.
  bor = 6,
  bxor = 7,
};

constexpr int reduce_op_count = 8;

LOCKSTEP_API std::string_view name(ReduceOp op);

}  // namespace lockstep
