// The preemption signals, SIGTERM and SIGUSR1: they tell a process that its job must make room.
//
// Signal handlers belong to the process, so all of its groups share this state.
//
// Thread safety: any thread may call any function.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/api.h"

namespace lockstep {

// Catches these signals from now on, so that they end no process. A second call changes nothing.
// Errors: system.
LOCKSTEP_API void keep_preemption_signals();

// Whether keep_preemption_signals() was called, and whether a signal has come since.
LOCKSTEP_API bool keeps_preemption_signals();
LOCKSTEP_API bool preemption_signalled();

}  // namespace lockstep
