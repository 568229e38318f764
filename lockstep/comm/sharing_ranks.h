// Which ranks of a group share memory: those of a host, unless an engine moves all bytes.
//
// local_rank() cannot tell: with LOCKSTEP_BACKEND=gloo even the ranks of one host share none. So
// each rank leaves a mark in memory that may be shared, and looks for the marks of the others.
// Blocking: the first call for a group is collective; later ones return what it found.
// Errors: those of ProcessGroup.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// By rank: the first of the ranks with which it shares memory. `label` is that of the collectives.
LOCKSTEP_API std::vector<int> sharing_ranks(const ProcessGroup& group, std::string_view label);

// Whether all ranks of the group share memory.
LOCKSTEP_API bool all_share_memory(const ProcessGroup& group, std::string_view label);

}  // namespace lockstep
