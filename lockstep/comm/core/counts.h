// How a collective's elements are divided among ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep {

// Number of elements of each rank's part, in rank order; the same list on all ranks. Empty when all
// parts are equal. The parts are contiguous in their buffer.
using Counts = std::vector<std::size_t>;

}  // namespace lockstep
