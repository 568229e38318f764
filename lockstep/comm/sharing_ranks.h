// Finds which ranks of a group share memory: those of a host, unless an engine moves all bytes.
//
// local_rank() is not enough: with LOCKSTEP_BACKEND=gloo, ranks of one host share no memory. Each
// rank writes a mark into memory that may be shared, and looks for the marks of the others.
// Blocking: the first call for a group is collective; later calls return its result.
// Errors: as ProcessGroup.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// Returns, by rank, the first of the ranks that share memory with it. `label` is the collectives'.
LOCKSTEP_API std::vector<int> sharing_ranks(const ProcessGroup& group, std::string_view label);

// Returns whether all ranks of the group share memory.
LOCKSTEP_API bool all_share_memory(const ProcessGroup& group, std::string_view label);

}  // namespace lockstep
