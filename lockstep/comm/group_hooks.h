// Calls by which the rest of the library follows a group's life: the end of a training step, and
// the group's own end.
//
// Thread safety: any thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// Finishes work on a background thread before its group ends: calls `act` on the thread that
// destroys `group`, or the group it was made from, before the destruction. Only while a handle of
// `act` exists. `act` returns when it no longer uses the group, and must not throw.
LOCKSTEP_API void before_end(const ProcessGroup& group,
                             const std::shared_ptr<const std::function<void()>>& act);

// Counts the training steps of a program that does not report them: adds one step of this rank.
// Does nothing once ProcessGroup::set_step() was called on any group of this rank. Errors: misuse
// for a destroyed group.
LOCKSTEP_API void count_step(const ProcessGroup& group);

}  // namespace lockstep
