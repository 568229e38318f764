// Which threads have met the Error of a broken group. What such a thread calls next shows that its
// program goes on, so the break is not the cause of a later end (JobPage::cause_of()). Other
// threads, such as the one that writes a checkpoint, go on in any case.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/job/activity.h"

namespace lockstep::comm {

// Whether this thread has met one, and has called nothing since. Other libraries would have a
// variable of their own: they call the functions of group_hooks.h.
inline constinit thread_local bool has_met_break = false;

// Before each call.
inline void note_going_on(Activity& activity) {
  if (!has_met_break) [[likely]]
    return;
  has_met_break = false;
  activity.resumed.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace lockstep::comm
