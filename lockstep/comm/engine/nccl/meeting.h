// How the members of a communicator find each other: rank 0 makes NCCL's id, and all learn it
// through the job's store.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include "lockstep/comm/engine/engine_abi.h"

namespace lockstep::plugin {

// Blocking until rank 0 has heard of all. Errors: misuse, on all ranks, when two of them are on
// one device, of which NCCL would make a hang or a warning on stderr; what the store throws.
ncclUniqueId meet(const lockstep_engine_config& config);

}  // namespace lockstep::plugin
