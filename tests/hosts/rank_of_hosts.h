// A rank of a job that a test starts on its own hosts, and may disturb. It checks the group, then
// reduces step by step, and reports events in lines that the test reads:
//
//   joined rank=0 size=4 backend=shm+gloo local_rank=0 local_size=2 pid=4242 attempt=0
//   checked rank=0                         every collective agrees with a loop over the ranks
//   stepping rank=0                        the steps begin
//   stepped rank=0                         some of them are complete
//   error rank=0 fault=peer_lost lost=3 at=123.456 step=812 since=0.012 text=...
//   preempted rank=0 step=812              the job is preempted
//   bye rank=0 steps=1000
//
// `rank` is -1 before the group exists; `lost` is -1 if the Error names no rank. `at` is the time
// of CLOCK_MONOTONIC, `since` the seconds since the last complete step, `text` the Error in one
// line.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/process_group.h"

namespace lockstep::test {

// Runs rank_of_hosts [--steps N | --until FILE | --until-preempted] [--timeout SECONDS]
// [--step-timeout SECONDS] [--ignore-sigterm]. It makes N steps (10), or continues until FILE
// exists or until a preemption. --step-timeout is that of steps after "stepped". With
// --ignore-sigterm, a rank that gets an Error late still reports it. Exit codes: that of a
// preemption, 10 + the Fault of an Error, 1 for another exception, 2 for a wrong result, otherwise
// 0.
int rank_of_hosts(int argc, char** argv, InitOptions options = {});

}  // namespace lockstep::test
