// What one rank does for all.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <string_view>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Collective: runs `action` on rank 0 while the others wait. Returns null once it is done; if it
// threw, what every rank is to throw: on rank 0 the same exception, on the others Error(aborted)
// with its text, which `what` begins.
std::exception_ptr attempt_on_rank_0(const ProcessGroup& group, std::string_view what,
                                     const std::function<void()>& action);

}  // namespace lockstep
