// Combining functions for Gloo's rings. Gloo's own lose NaN in min and max.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::plugin {

// out[i] = left[i] op right[i], for `count` elements; `out` may be one of the two.
using Combine = void (*)(void* out, const void* left, const void* right, std::size_t count);

// Returns null for types that the core must combine itself: bool, and float16 and bfloat16, whose
// sums it rounds once.
Combine combine_for(std::uint8_t dtype, std::uint8_t reduce_op);

}  // namespace lockstep::plugin
