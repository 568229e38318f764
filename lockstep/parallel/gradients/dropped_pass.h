// Ends a pass that an exception has cut short on this rank, together with the other ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <string_view>

#include "lockstep/comm/process_group.h"

namespace lockstep {

using TakePart = std::function<void(std::string_view text)>;

// `error` has ended the pass here; null is an unknown exception. `take_part`, which gets its text,
// does what the others wait for, so that they learn of it. If it throws, `own` is given up. Both
// groups are given up, with the text, after three times the `longest_pass` so far, and not before
// 5 s: the others may wait for this rank in a group that we know nothing of.
// Blocking: until the others have come to the end of the pass.
void end_with_the_others(const std::exception_ptr& error, const ProcessGroup& own,
                         const ProcessGroup& given, std::chrono::nanoseconds longest_pass,
                         const TakePart& take_part) noexcept;

}  // namespace lockstep
