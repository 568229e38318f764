// Counts the training steps of a program that does not report them.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// Adds one step of this rank. Does nothing once ProcessGroup::set_step() was called on any group of
// this rank. Thread safety: any thread. Errors: misuse for a destroyed group.
LOCKSTEP_API void count_step(const ProcessGroup& group);

}  // namespace lockstep
