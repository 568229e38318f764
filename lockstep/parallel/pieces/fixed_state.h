// Checks for state that a forward() must not change if results are to be independent of the number
// of ranks. Buffers depend on the samples that a rank has seen, and on their order.

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

// Returns one value for each of named_tensors(). For a parameter it is the version counter, which
// an Embedding with max_norm changes in forward(). For a buffer it is a hash of the elements,
// because kernels of BatchNorm change no counter.
std::vector<std::uint64_t> fingerprints_of(const torch::nn::Module& module);

}  // namespace lockstep
