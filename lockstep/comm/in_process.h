// A group whose ranks are threads of this process: for unit tests of programs that communicate,
// and for running them under ThreadSanitizer or a debugger.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// Calls `body` once on each of `world_size` threads, with a group of all of them, which is
// destroyed when `body` returns. The group does everything that one of processes does.
// Blocking: until all threads have ended.
// Errors: what the first `body` to throw threw; the others' calls fail with peer_lost, as if that
// rank had died. misuse when world_size is not positive.
LOCKSTEP_API void run_in_process(int world_size, const std::function<void(ProcessGroup&)>& body,
                                 std::chrono::milliseconds timeout = default_timeout);

}  // namespace lockstep
