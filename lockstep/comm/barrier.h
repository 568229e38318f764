// A barrier as a free function, beside those of comm/values.h and tensor/collectives.h.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Returns once every rank of the group has called it: group.barrier(options). CUDA work that a rank
// has enqueued may still run. Errors: as ProcessGroup's; on a timeout, every rank that came names
// all absent ranks.
inline void barrier(const ProcessGroup& group, const CallOptions& options = {}) {
  group.barrier(options);
}

}  // namespace lockstep
