// Which CPUs of the host each rank is bound to.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/api.h"

namespace lockstep {

// The CPUs that this process may run on, in rising order.
LOCKSTEP_API std::vector<int> usable_cpus();

// One block of neighbouring CPUs for each rank, the sizes at most one apart. With more ranks
// than CPUs nobody is bound: every block is empty.
std::vector<std::vector<int>> divide_cpus(const std::vector<int>& cpus, int ranks);

// Numbers in rising order as people write them, such as "0-3,8".
std::string as_ranges(const std::vector<int>& numbers);

}  // namespace lockstep
