// What this process still does for worlds that it has left while other ranks go on: it keeps its
// connections until the ranks of other hosts have read what it has sent. Ranks of its own host need
// nothing: they have the memory of its messages.
//
// Thread safety: any thread may call any function.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/comm/hosts/hosts_group.h"

namespace lockstep::comm {

// Keeps `context` until no rank needs it, or this process ends. The end of the process waits for
// the readers on other hosts, a second at most.
void keep_for_others(std::shared_ptr<HostsContext> context);

// Lets those go that no rank needs any more.
void let_go_of_left_worlds();

}  // namespace lockstep::comm
