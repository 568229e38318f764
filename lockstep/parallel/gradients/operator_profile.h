// Records LibTorch's operators for the timeline of all ranks (job/timeline_recorder.h), by Kineto.
//
// LOCKSTEP_PROFILE=steps=FIRST:END sets the window of steps, from 0, without END. Without this
// variable, or without a timeline, nothing is recorded.
//
// Thread safety: none.
// Errors: misuse for a variable of another form.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/process_group.h"

namespace lockstep::parallel {

// Call it before a forward() with gradients: starts the record in the window, and ends it after
// that or at the end of `group`.
void profile_operators(const ProcessGroup& group);

}  // namespace lockstep::parallel
