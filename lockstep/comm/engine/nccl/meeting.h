// Rendezvous of a communicator's members: rank 0 makes NCCL's id, and all read it from the job's
// store.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include "lockstep/comm/engine/engine_abi.h"

namespace lockstep::plugin {

// Blocking: until rank 0 has heard from all. Errors: the store's; misuse, on all ranks, when two of
// them use one device. NCCL would hang then, or only print a warning on stderr.
ncclUniqueId meet(const lockstep_engine_config& config);

}  // namespace lockstep::plugin
