// Names of signals, for messages.
//
// Thread safety: any thread may call any function. Blocking: no.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/api.h"

namespace lockstep {

// Returns "SIGTERM", or "signal 77" for a signal without a name.
LOCKSTEP_API std::string signal_name(int signal);

// A shell exits with 128 + N when signal N killed its program. Returns the name of that signal for
// such an exit code: "SIGSEGV" for 139. Empty for any other code.
LOCKSTEP_API std::string signal_of_exit_code(int exit_code);

// Returns "exited with code 1"; with the signal, if signal_of_exit_code() has one.
LOCKSTEP_API std::string describe_exit_code(int exit_code);

}  // namespace lockstep
