// Names of signals, for messages.
//
// Thread safety: full. Blocking: no.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/api.h"

namespace lockstep {

// "SIGTERM"; "signal 77" if it has no name.
LOCKSTEP_API std::string signal_name(int signal);

// "SIGSEGV" for 139: a shell exits with 128 + N when signal N killed its program. Empty for other
// codes.
LOCKSTEP_API std::string signal_of_exit_code(int exit_code);

// "exited with code 1", and signal_of_exit_code(), if any.
LOCKSTEP_API std::string describe_exit_code(int exit_code);

}  // namespace lockstep
