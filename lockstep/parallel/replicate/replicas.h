// Making the replicas of a module equal, and showing that they can be.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

// Collective. Errors: mismatch, on every rank, when names, types, shapes, strides, kinds of device
// or what requires a gradient differ from rank 0's; it names the first tensor that does and its
// rank.
LOCKSTEP_API void require_same_tensors(const NamedTensors& tensors, const ProcessGroup& group);

// Errors: unsupported when what requires a gradient is on several devices; it names two of them.
void require_one_device(const NamedTensors& parameters);

// Collective. Errors: mismatch, on every rank, when an option differs; it names the first that
// does.
void require_same_options(const DistributedDataParallelOptions& options, const ProcessGroup& group);

// Collective. Every tensor becomes rank `root`'s, in one broadcast for each element type and 32
// MiB.
// Errors: as broadcast_coalesced(); mismatch when names or their order differ between ranks.
LOCKSTEP_API void broadcast_replica(const NamedTensors& tensors, const ProcessGroup& group,
                                    int root = 0);

}  // namespace lockstep
