// Measures the speed of the links between ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/toolkit/run_log/run_record.h"

namespace lockstep::run_log {

// Collective. Times an all_reduce over the group, and on several hosts also over each host's ranks.
// `host_of_rank` numbers the hosts. Takes some ms, at 100 Mbit/s about a second. Empty for one
// rank.
std::vector<LinkSpeed> measure_links(const ProcessGroup& group,
                                     const std::vector<int>& host_of_rank);

}  // namespace lockstep::run_log
