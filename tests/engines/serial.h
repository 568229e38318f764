// Reference for an engine's results: elements as a function of place and rank, and plain loops that
// combine them.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/comm/core/buffer.h"

namespace lockstep::test {

using Bytes = std::vector<std::byte>;

// Returns the elements of a rank, or of any other seed. Sums and products over ranks are exact in
// floating-point types. They overflow in integers: every fifth one is large. Some are negative
// where the type allows it. Booleans are bytes of 0 to 3.
Bytes elements(DType dtype, std::size_t count, int seed);

// True if combined() supports the arithmetic of `dtype`.
bool can_combine(DType dtype);

// Combines the elements() of seeds 0 to ranks - 1.
Bytes combined(DType dtype, ReduceOp op, std::size_t count, int ranks);

// Booleans are equal when both are true.
bool are_equal(DType dtype, const std::byte* found, const Bytes& expected);

void append(Bytes& to, const Bytes& more);

}  // namespace lockstep::test
