// What `lockstep run` knows of ranks that have ended before they joined a group, the first one or
// the next.
//
// It reports their ends on a page of its own. Ranks that wait in a store for the others look there.

// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep::c10d {

// To be called only if LOCKSTEP_AGENT_FD is set. Thread safety: any thread may call it. Blocking:
// the first call, until the agent has answered. Errors: peer_lost, with the rank that has ended;
// the first such call logs its failure record.
void throw_if_launcher_lost_rank();

}  // namespace lockstep::c10d
