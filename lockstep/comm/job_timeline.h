// Communication for a job's timeline (job/timeline_recorder.h): aligns the clocks of all hosts, and
// collects all files on one host.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/process_group.h"
#include "lockstep/job/environment.h"

namespace lockstep::comm {

// Collective, if all ranks have LOCKSTEP_TIMELINE_DIR; without it, does nothing. Records this
// process from now on. When `world` is destroyed, ranks of other hosts send their files to rank 0's
// host, unless they share the folder's file system.
//
// Messages to and from rank 0 compare the clocks of hosts, now and at the end. In between, a clock
// is assumed to drift linearly. Each of 32 round trips bounds the difference; the estimate is the
// middle of the interval that satisfies all bounds. Its error at that moment is at most half of the
// fastest round trip, and the rank's file contains that limit. Ranks of a host share one clock.
//
// Errors: as TimelineRecorder and ProcessGroup.
void record_timeline(const ProcessGroup& world, const LaunchEnvironment& who);

}  // namespace lockstep::comm
