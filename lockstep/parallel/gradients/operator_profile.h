// Records LibTorch's operators for the timeline of all ranks (job/timeline_recorder.h), by Kineto.
//
// LOCKSTEP_PROFILE=steps=FIRST:END sets the window of steps, counted from 0, END not included.
// Without it or without a timeline, nothing is recorded.
//
// Thread safety: the thread of the training loop uses it.
// Errors: misuse for a variable of another form.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/process_group.h"

namespace lockstep::parallel {

// Call it before a forward() with gradients. Starts and ends the record at the window's bounds, or
// at the end of `group`.
void profile_operators(const ProcessGroup& group);

}  // namespace lockstep::parallel
