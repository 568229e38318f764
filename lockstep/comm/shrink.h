// Recreates a group among ranks of a later generation. shrink() is in elastic_group.h.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::comm {

// Collective among `ranks` of `world`: as ProcessGroup::group_of(), with the name that `group` had
// before its first shrink().
ProcessGroup recreate_group(const ProcessGroup& group, const ProcessGroup& world,
                            const std::vector<int>& ranks, const CallOptions& options);

}  // namespace lockstep::comm
