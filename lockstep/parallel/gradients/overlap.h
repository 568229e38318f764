// Whether gradients are reduced while backward() goes on.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"

namespace lockstep {

// Collective: the same on all ranks. What `options` say or, where they say nothing: with several
// ranks, whether the gradients are on a `device`, whether the ranks are on several hosts, or
// whether together they may run on as many cores as they have intra-op threads and one more each.
bool agree_on_overlap(const DistributedDataParallelOptions& options, const ProcessGroup& group,
                      c10::Device device);

}  // namespace lockstep
