// Counts the steps of a training whose program does not tell them.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// This rank has made one more step. Does nothing once ProcessGroup::set_step() was called, on
// `group` or any other of this rank. Thread safety: any thread. Errors: misuse for a group that was
// destroyed.
LOCKSTEP_API void count_step(const ProcessGroup& group);

}  // namespace lockstep
