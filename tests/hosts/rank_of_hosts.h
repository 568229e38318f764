// A rank whose job a test starts on hosts of its own, and perhaps harms. It checks the group, then
// reduces step by step, and says what happens to it in lines that the test reads:
//
//   joined rank=0 size=4 backend=shm+gloo local_rank=0 local_size=2 pid=4242 attempt=0
//   checked rank=0                         every collective agrees with a loop over the ranks
//   stepping rank=0                        the steps begin
//   stepped rank=0                         some of them are complete
//   error rank=0 fault=peer_lost lost=3 at=123.456 step=812 since=0.012 text=...
//   preempted rank=0 step=812              the job is asked to make room
//   bye rank=0 steps=1000
//
// `rank` is -1 before the group is there, `lost` when no rank is named. `at` is the time of
// CLOCK_MONOTONIC, `since` the seconds since a step was complete, `text` the Error's in one line.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/process_group.h"

namespace lockstep::test {

// rank_of_hosts [--steps N | --until FILE | --until-preempted] [--timeout SECONDS]: makes N steps
// (10), or continues until FILE exists or a preemption. Returns the exit code: that of preemption,
// 10 + the Fault of an Error, 1 for another exception, 2 for a wrong result, else 0.
int rank_of_hosts(int argc, char** argv, InitOptions options = {});

}  // namespace lockstep::test
