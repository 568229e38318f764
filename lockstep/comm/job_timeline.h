// A job's timeline (job/timeline_recorder.h), as far as ranks have to talk for it: one clock for
// all hosts, and one host for all files.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/process_group.h"
#include "lockstep/job/environment.h"

namespace lockstep::comm {

// Collective, if all ranks have LOCKSTEP_TIMELINE_DIR; without it, does nothing. Records this
// process from now on. When `world` is destroyed, ranks of other hosts send their files to rank
// 0's, unless the folder is on a file system that they share.
//
// Clocks of hosts are compared by messages to and from rank 0, now and at the end; between the two,
// a clock is taken to drift evenly. Each of 32 round trips tells between which bounds the
// difference lies; the middle of what fits all of them counts. At that moment the error is at most
// half of the fastest round trip, and the rank's file says how large it may be. Ranks of a host
// have one clock.
//
// Errors: as TimelineRecorder's and ProcessGroup's.
void record_timeline(const ProcessGroup& world, const LaunchEnvironment& who);

}  // namespace lockstep::comm
