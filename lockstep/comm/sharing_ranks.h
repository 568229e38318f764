// Finds which ranks of a group share memory: those of a host, unless an engine such as gloo moves
// all bytes.
//
// Blocking: the first call for a group is collective; later calls return its result.
// Errors: as ProcessGroup.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// Returns, for each rank, the first rank that shares memory with it. `label` is the collectives'.
LOCKSTEP_API std::vector<int> sharing_ranks(const ProcessGroup& group, std::string_view label);

LOCKSTEP_API bool all_share_memory(const ProcessGroup& group, std::string_view label);

}  // namespace lockstep
