// Parameters of which each rank of a DistributedDataParallel has its own: experts that are cut over
// its ranks (ParameterLayout::is_averaged). They are no replicas.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/named_tensors.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

bool has_experts(const torch::nn::Module& module);

// Those of the module's `tensors` that are no experts.
NamedTensors without_experts(NamedTensors tensors, const torch::nn::Module& module);

// Collective. Errors: misuse, on all ranks, if the gradient of an expert is a mean over other ranks
// than those of `group`.
void require_all_ranks_of_experts(const torch::nn::Module& module, const ProcessGroup& group);

// Collective over the replicas of each expert: they get those of the first one.
void broadcast_experts(const torch::nn::Module& module);

}  // namespace lockstep
