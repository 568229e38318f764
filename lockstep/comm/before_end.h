// Finishes work on a background thread before its group ends.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// Calls `act` on the thread that destroys `group`, or the group it was made from, before the
// destruction. Only while a handle of `act` exists. `act` returns when it no longer uses the group,
// and must not throw.
// Thread safety: any thread.
LOCKSTEP_API void before_end(const ProcessGroup& group,
                             const std::shared_ptr<const std::function<void()>>& act);

}  // namespace lockstep
