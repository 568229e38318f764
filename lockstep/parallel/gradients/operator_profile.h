// Records LibTorch's operators in a window of steps, for the timeline of all ranks
// (job/timeline_recorder.h), by LibTorch's own profiler, Kineto.
//
// The variable LOCKSTEP_PROFILE=steps=FIRST:END sets the window, END not included. Steps are
// counted from 0, as StepClock does. Without the variable or without a timeline, nothing is
// recorded.
//
// Thread safety: the thread of the training loop uses it.
// Errors: misuse for a variable of another form.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/process_group.h"

namespace lockstep::parallel {

// Call it before a forward() with gradients. Starts and ends the record at the window's bounds. The
// end of `group` ends it too.
void profile_operators(const ProcessGroup& group);

}  // namespace lockstep::parallel
