// Tells a process from the fork()ed copies of it, without a system call.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include "lockstep/base/api.h"

namespace lockstep {

// As getpid(), at the cost of a load: a system call is half as long as the rest of a collective.
// Right in every child that has memory of its own, by fork(), _Fork() or clone(). A child of
// vfork() shares its parent's memory, and gets its parent's pid.
// Thread safety: any thread.
LOCKSTEP_API pid_t this_process();

}  // namespace lockstep
