// Runs an action on rank 0 with one outcome for all ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <string_view>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Collective: runs `action` on rank 0 while the others wait. Returns null if it succeeds. If it
// throws, returns the exception that every rank must throw: on rank 0 the same exception, on the
// others Error(aborted) with its text after `what`.
std::exception_ptr attempt_on_rank_0(const ProcessGroup& group, std::string_view what,
                                     const std::function<void()>& action);

}  // namespace lockstep
