// Formats lists of ranks and processors for people.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

// Formats numbers in rising order: "0-3,8".
LOCKSTEP_API std::string as_ranges(const std::vector<int>& numbers);

// "rank 3", or "ranks 0-3,8".
LOCKSTEP_API std::string name_of_ranks(const std::vector<int>& ranks);

}  // namespace lockstep
