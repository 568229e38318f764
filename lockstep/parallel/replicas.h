// Making the replicas of a module equal, and showing that they can be.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

// Collective. Errors: mismatch, on every rank, when names, types, shapes, strides or
// what requires a gradient differ from rank 0's; it names the first tensor that does and its rank.
LOCKSTEP_API void require_same_tensors(const NamedTensors& tensors, const ProcessGroup& group);

// Collective. Every tensor becomes rank `root`'s, or rank 0's.
LOCKSTEP_API void broadcast_from(const NamedTensors& tensors, const ProcessGroup& group, int root);
LOCKSTEP_API void broadcast_from_rank_zero(const NamedTensors& tensors, const ProcessGroup& group);

}  // namespace lockstep
