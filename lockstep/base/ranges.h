// Formats lists of ranks and processors for people.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

// Formats numbers in rising order: "0-3,8".
LOCKSTEP_API std::string as_ranges(const std::vector<int>& numbers);

// "rank 3", or "ranks 0-3,8".
LOCKSTEP_API std::string name_of_ranks(const std::vector<int>& ranks);

// Returns the members of `ranks` that a group of `size` has, rising, each once. Use it for another
// process's input.
LOCKSTEP_API std::vector<int> ranks_within(std::vector<int> ranks, int size);

// Limit of the ranks to blame that one process sends to another; further ranks are only counted.
constexpr std::size_t most_blamed = 64;

}  // namespace lockstep
