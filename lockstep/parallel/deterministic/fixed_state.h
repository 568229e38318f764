// Buffers and random numbers, which must not depend on the rank that computes a microbatch.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/tensor/generator_states.h"

namespace torch::nn {
class Module;
}

namespace lockstep::parallel {

// Errors: unsupported, with its name, for a BatchNorm or InstanceNorm with running statistics, or a
// SyncBatchNorm, in training mode.
void require_fixed_statistics(const torch::nn::Module& module);

// One value for each of named_tensors(). For a parameter, the version counter, which an Embedding
// with max_norm changes in forward(). For a buffer, a hash: BatchNorm changes no counter.
std::vector<std::uint64_t> fingerprints_of(const torch::nn::Module& module);

// A microbatch's random numbers, from LibTorch's default CPU generator. The destructor restores the
// generator's state.
class MicrobatchRandom {
 public:
  void begin(std::uint64_t seed, std::int64_t step, int microbatch);

 private:
  const KeptGenerator before_;
};

}  // namespace lockstep::parallel
