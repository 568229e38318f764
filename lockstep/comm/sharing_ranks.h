// Which ranks of a group share memory: those of a host, unless an engine moves all bytes.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// By rank: the first of the ranks with which it shares memory. local_rank() cannot tell: with
// LOCKSTEP_BACKEND=gloo even the ranks of one host share none, so each looks for the marks of the
// others. Collective; `label` is that of the allocation. Errors: those of ProcessGroup.
LOCKSTEP_API std::vector<int> sharing_ranks(const ProcessGroup& group, std::string_view label);

}  // namespace lockstep
