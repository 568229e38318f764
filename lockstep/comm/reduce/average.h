// Turns sums into averages.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/core/buffer.h"

namespace lockstep {

// Multiplies each of `sums` by 1 / ranks. Floating-point types only; float16 and bfloat16 are
// rounded once more.
void divide_sums(const Buffer& sums, int ranks);

}  // namespace lockstep
