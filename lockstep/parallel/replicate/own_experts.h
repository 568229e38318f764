// Experts that are cut over a DistributedDataParallel's ranks (ParameterLayout::is_averaged).

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/named_tensors.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

bool has_experts(const torch::nn::Module& module);

NamedTensors without_experts(NamedTensors tensors, const torch::nn::Module& module);

// Collective. Errors: misuse, on all ranks, if an expert's gradient is a mean over other ranks than
// those of `group`.
void require_all_ranks_of_experts(const torch::nn::Module& module, const ProcessGroup& group);

// Collective: broadcasts each expert from its first replica.
void broadcast_experts(const torch::nn::Module& module);

}  // namespace lockstep
