// The signals by which a process is told that its job must make room: SIGTERM and SIGUSR1.
//
// They are a property of the process, so this is kept once for all of its groups.
//
// Thread safety: every function may be called from any thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/api.h"

namespace lockstep {

// From now on these signals are kept and end nobody. A second call changes nothing. Errors: system.
LOCKSTEP_API void keep_preemption_signals();

// Whether that was asked for, and whether such a signal has come since.
LOCKSTEP_API bool keeps_preemption_signals();
LOCKSTEP_API bool preemption_signalled();

}  // namespace lockstep
