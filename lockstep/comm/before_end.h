// What is under way on a thread of its own, and must be done before a group ends.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// Whoever destroys `group`, or the group it was made from, first calls `act` on its thread, as long
// as there is a handle of it. `act` returns when it is done with the group, and must not throw.
// Thread safety: any thread.
LOCKSTEP_API void before_end(const ProcessGroup& group,
                             const std::shared_ptr<const std::function<void()>>& act);

}  // namespace lockstep
