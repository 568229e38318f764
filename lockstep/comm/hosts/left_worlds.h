// What this process still does for worlds that it has left while other ranks go on: it passes
// memory between those of its host, and keeps its connections until those of other hosts have read
// what it has sent.
//
// Thread safety: any thread may call any function.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/comm/hosts/hosts_group.h"
#include "lockstep/job/host_session.h"

namespace lockstep::comm {

// Keeps both until no rank needs them, or this process ends. `context` is null where shared memory
// serves all ranks. The end of the process waits for the readers on other hosts, a second at most.
void keep_for_others(std::shared_ptr<HostSession> session, std::shared_ptr<HostsContext> context);

// Lets those go that no rank needs any more.
void let_go_of_left_worlds();

}  // namespace lockstep::comm
