// What an engine's results are compared with: elements that are a function of their place and rank,
// and plain loops that combine them.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/comm/core/dtype.h"
#include "lockstep/comm/core/reduce_op.h"

namespace lockstep::test {

using Bytes = std::vector<std::byte>;

// Of a rank, or of any other number. Sums and products of some ranks' are exact in floating-point
// types and overflow in integers, of which every fifth is large; there are negative ones where
// there can be. Booleans are bytes of 0 to 3.
Bytes elements(DType dtype, std::size_t count, int seed);

// Whether combined() knows its arithmetic.
bool can_combine(DType dtype);

// elements() of seeds 0 to ranks - 1.
Bytes combined(DType dtype, ReduceOp op, std::size_t count, int ranks);

// Booleans are equal when both are true.
bool are_equal(DType dtype, const std::byte* found, const Bytes& expected);

void append(Bytes& to, const Bytes& more);

}  // namespace lockstep::test
