// How a collective's elements are divided among ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep {

// Elements of each rank's part, in the order of the ranks; the same list on all ranks. Empty when
// all parts are equal. Parts lie in their buffer one after the other.
using Counts = std::vector<std::size_t>;

}  // namespace lockstep
