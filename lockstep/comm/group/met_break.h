// Marks threads that got the Error of a broken group. The next call of such a thread shows that its
// program continues: the break is not the cause of a later end (JobControlBlock::cause_of()).

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/job/activity.h"

namespace lockstep::comm {

// This thread got such an Error, and has made no call since. Other libraries would have their own
// copy of the variable: they use group_hooks.h.
inline constinit thread_local bool has_met_break = false;

// Call it before each call.
inline void note_going_on(Activity& activity) {
  if (!has_met_break) [[likely]]
    return;
  has_met_break = false;
  activity.resumed.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace lockstep::comm
