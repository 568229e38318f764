// The speed of the links between ranks, as measured by an all_reduce.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/observe/run_log/run_record.h"

namespace lockstep::observe {

// Collective. Measures an all_reduce over the whole group, and on several hosts also over the ranks
// of each. `host_of_rank` numbers the hosts. Takes some milliseconds, and about a second at 100
// Mbit/s. Empty for one rank.
std::vector<LinkSpeed> measure_links(const ProcessGroup& group,
                                     const std::vector<int>& host_of_rank);

}  // namespace lockstep::observe
