// Keeps connections of worlds that this process has left until ranks of other hosts have read all
// data.
//
// Thread safety: any thread may call any function.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/comm/hosts/hosts_group.h"

namespace lockstep::comm {

// Keeps `context` until no rank needs it. The end of the process waits for readers on other hosts,
// at most a second.
void keep_for_others(std::shared_ptr<HostsContext> context);

// Releases the contexts that no rank needs any more.
void let_go_of_left_worlds();

}  // namespace lockstep::comm
