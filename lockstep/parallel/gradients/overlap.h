// Decides whether gradients are reduced during backward().

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"

namespace lockstep {

// Collective: returns the same on all ranks. An explicit option decides. Otherwise returns true for
// several ranks if one of these holds: the gradients' `device` is not the CPU; the ranks are on
// several hosts; together they may run on as many cores as they have intra-op threads, plus one per
// rank.
bool agree_on_overlap(const DistributedDataParallelOptions& options, const ProcessGroup& group,
                      c10::Device device);

}  // namespace lockstep
