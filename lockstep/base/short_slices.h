// Threads of ours wait for other ranks most of the time, and these for what they do then: a
// message, a step of a collective, the sum of a bucket.
//
// Since Linux 6.12 a thread may ask for shorter slices of CPU time than others have: then it runs
// as soon as it is woken, also where a thread that computes has the CPU, and yet gets no more of
// it. Without, a message waits for the end of the other's slice where a rank has no CPU to spare:
// some 4 ms, each time. https://docs.kernel.org/scheduler/sched-eevdf.html

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/api.h"

namespace lockstep {

// For the calling thread, and those that it starts. Nothing where the kernel knows no such slices,
// or the thread has another policy than SCHED_OTHER.
LOCKSTEP_API void ask_for_short_slices();

}  // namespace lockstep
