// Signals, of this process and of others.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>

namespace lockstep {

// "SIGTERM", or "signal 77" for one without a name.
std::string signal_name(int signal);

// Whether the process has a handler for it, as /proc says; false when it is gone.
bool catches(pid_t pid, int signal);

// Whether a signal has stopped the process, or a debugger has.
bool is_stopped(pid_t pid);

}  // namespace lockstep
