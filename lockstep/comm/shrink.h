// Makes a group again among ranks of a later generation. lockstep/comm/elastic_group.h has
// shrink().

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::comm {

// Collective among `ranks` of `world`: as ProcessGroup::group_of(), with the name that `group` had
// before its first shrink().
ProcessGroup made_again(const ProcessGroup& group, const ProcessGroup& world,
                        const std::vector<int>& ranks, const CallOptions& options);

}  // namespace lockstep::comm
