// Names of signals, for messages.
//
// Thread safety: any thread may call any function. Blocking: no.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/api.h"

namespace lockstep {

// "SIGTERM", or "signal 77" for a signal without a name.
LOCKSTEP_API std::string signal_name(int signal);

// A shell exits with 128 + N when signal N killed its program. Returns the signal's name: "SIGSEGV"
// for 139, empty for other codes.
LOCKSTEP_API std::string signal_of_exit_code(int exit_code);

// "exited with code 1", with the signal of signal_of_exit_code(), if any.
LOCKSTEP_API std::string describe_exit_code(int exit_code);

}  // namespace lockstep
