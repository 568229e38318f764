// Tells a process from its fork()ed copies, without a system call.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include "lockstep/base/api.h"

namespace lockstep {

// Returns getpid() at the cost of a load. A system call would take half as long as the rest of a
// collective. Correct in every child with its own memory, made by fork(), _Fork() or clone(). A
// child of vfork() shares its parent's memory and gets its parent's pid.
// Thread safety: any thread.
LOCKSTEP_API pid_t this_process();

}  // namespace lockstep
