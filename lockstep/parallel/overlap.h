// Whether gradients are reduced while backward() goes on.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/distributed_data_parallel_options.h"

namespace lockstep {

// Collective: the same on all ranks. What `options` say or, where they say nothing, whether the ranks
// are on several hosts, or together may run on as many cores as they have intra-op threads and one
// more each.
bool agree_on_overlap(const DistributedDataParallelOptions& options, const ProcessGroup& group);

}  // namespace lockstep
