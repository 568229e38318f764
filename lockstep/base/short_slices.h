// Asks the kernel for short slices of CPU time, so that our threads run as soon as they are woken.
//
// Our threads mostly wait for other ranks, and ranks wait for their answers: a message, a step of a
// collective, the sum of a bucket. Since Linux 6.12 a thread may ask for shorter slices than others
// have. It then preempts a thread that computes, and still gets no more CPU time in total.
// Without this, on a rank with no spare CPU, each message waits about 4 ms for the end of the other
// thread's slice. https://docs.kernel.org/scheduler/sched-eevdf.html

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/api.h"

namespace lockstep {

// Applies to the calling thread and the threads it starts. Does nothing if the kernel lacks the
// feature or the thread's policy is not SCHED_OTHER.
LOCKSTEP_API void ask_for_short_slices();

}  // namespace lockstep
