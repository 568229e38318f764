// What a forward() must not change, if the number of ranks is to make no difference: buffers follow
// the samples that a rank has seen, and the order in which it saw them.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/tensor/named_tensors.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

// Errors: unsupported, with its name, for a BatchNorm or InstanceNorm in training mode that has
// running statistics, and for a SyncBatchNorm in training mode.
void require_fixed_statistics(const torch::nn::Module& module);

// Of each of named_tensors(): a parameter's version counter, which an Embedding with max_norm moves
// in forward(), and a hash of each buffer's elements, since kernels of BatchNorm move no counter.
std::vector<std::uint64_t> fingerprints_of(const torch::nn::Module& module);

}  // namespace lockstep
