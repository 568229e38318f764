// The signals by which a process is told that its job must make room: SIGTERM and SIGUSR1.
//
// They are a property of the process, so this is kept once for all of its groups.
//
// Thread safety: every function may be called from any thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep {

// From now on these signals are kept and end nobody. A second call changes nothing. Errors: system.
void keep_preemption_signals();

// Whether that was asked for, and whether such a signal has come since.
bool keeps_preemption_signals();
bool preemption_signalled();

}  // namespace lockstep
