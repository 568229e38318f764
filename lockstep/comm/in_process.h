// A group whose ranks are threads of this process, for unit tests, ThreadSanitizer and debuggers.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// Calls `body` on each of `world_size` threads with a group of all of them, destroyed when `body`
// returns.
// Blocking: until all threads have ended.
// Errors: the exception of the first `body` that throws; other threads' calls then fail with
// peer_lost. Misuse when world_size is not positive.
LOCKSTEP_API void run_in_process(int world_size, const std::function<void(ProcessGroup&)>& body,
                                 std::chrono::milliseconds timeout = default_timeout);

}  // namespace lockstep
