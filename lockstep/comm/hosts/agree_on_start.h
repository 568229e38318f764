// Which start of a job this is, on a store that outlives the ranks of one start, as torchrun's
// does. What those of an earlier start said is still there. A launcher's count of restarts does not
// tell starts apart: each of torchrun's agents has its own, and a change of hosts counts for none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/time.h"
#include "lockstep/job/store/store.h"

namespace lockstep {

// Collective: a name that all ranks of this start get, and nobody else has had. Keys in the store
// begin with `prefix`. Ranks of an earlier start must have ended; what they said does no harm.
// Blocking: until all have come. Errors: timeout, on all ranks and with all that are missing;
// corrupt; the store's.
std::string agree_on_start(Store& store, const std::string& prefix, int rank, int world_size,
                           Deadline deadline);

}  // namespace lockstep
