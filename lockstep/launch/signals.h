// Signals, of this process and of others.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>

namespace lockstep {

// Returns "SIGTERM", or "signal 77" for a signal without a name.
std::string signal_name(int signal);

// True if the process has a handler for the signal, according to /proc; false when it has gone.
bool catches(pid_t pid, int signal);

// True if a signal or a debugger has stopped the process.
bool is_stopped(pid_t pid);

}  // namespace lockstep
