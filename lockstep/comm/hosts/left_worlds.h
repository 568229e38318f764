// Keeps connections of worlds that this process has left.
//
// Thread safety: any thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/comm/hosts/hosts_group.h"

namespace lockstep::comm {

// Keeps `context` until ranks of other hosts have read all data. The end of the process waits for
// them, at most 5 s for all kept contexts together.
void keep_for_others(std::shared_ptr<HostsContext> context);

// Releases the contexts that no rank needs any more.
void let_go_of_left_worlds();

}  // namespace lockstep::comm
