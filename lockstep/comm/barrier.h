// barrier() as a free function.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/process_group.h"

namespace lockstep {

// CUDA work that a rank has enqueued may still run.
inline void barrier(const ProcessGroup& group, const CallOptions& options = {}) {
  group.barrier(options);
}

}  // namespace lockstep
