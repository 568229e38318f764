// Identifies one start of a job, on a store that outlives the ranks of a start, as torchrun's does.
// The store still has values of earlier starts.
// A launcher's count of restarts does not identify a start. Each of torchrun's agents has its own
// count, which does not include a change of hosts.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/time.h"
#include "lockstep/job/store/store.h"

namespace lockstep {

// Collective: returns a name that all ranks of this start get, and no others ever had. Keys in the
// store begin with `prefix`. Ranks of an earlier start must have ended; their values do no harm.
// Blocking: until all have come. Errors: timeout, on all ranks and with all missing ranks; corrupt;
// the store's.
std::string agree_on_start(Store& store, const std::string& prefix, int rank, int world_size,
                           Deadline deadline);

}  // namespace lockstep
