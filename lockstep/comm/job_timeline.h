// Aligns the hosts' clocks for a job's timeline (job/timeline_recorder.h), and collects its files.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/process_group.h"
#include "lockstep/job/environment.h"

namespace lockstep::comm {

// Collective, if all ranks have LOCKSTEP_TIMELINE_DIR; without it, does nothing. Records this
// process from now on. When `world` is destroyed, other hosts send their files to rank 0's host,
// unless they share the folder.
//
// Rank 0 compares its clock with each other host's, now and at the end, and assumes linear drift in
// between: docs/internals/observing.md.
//
// Errors: as TimelineRecorder and ProcessGroup.
void record_timeline(const ProcessGroup& world, const LaunchEnvironment& who);

}  // namespace lockstep::comm
