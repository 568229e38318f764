// Keeps the connections of worlds that this process has left, until the ranks of other hosts have
// read all that it has sent. Ranks of its own host need nothing: they have its messages in memory.
//
// Thread safety: any thread may call any function.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/comm/hosts/hosts_group.h"

namespace lockstep::comm {

// Keeps `context` until no rank needs it, or this process ends. The end of the process waits for
// the readers on other hosts, at most a second.
void keep_for_others(std::shared_ptr<HostsContext> context);

// Releases the contexts that no rank needs any more.
void let_go_of_left_worlds();

}  // namespace lockstep::comm
