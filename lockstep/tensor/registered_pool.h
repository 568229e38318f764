// Tensors in registered memory, for results that collectives change in place
// (docs/internals/model-parallel.md). On a rank whose region is full, the tensor gets ordinary
// memory.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <mutex>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/registered_region.h"

namespace lockstep::tensor {

// Thread safety: full, in one order on all ranks, like collectives. Lifetime: tensors may outlive
// the pool and the group.
class LOCKSTEP_API RegisteredPool {
 public:
  // The region's bytes per rank: at least twice the largest tensor so far, within these bounds.
  // Tensors of more than most_bytes / 2 do not enlarge it.
  static constexpr std::size_t least_bytes = std::size_t{1} << 20;
  static constexpr std::size_t most_bytes = std::size_t{256} << 20;

  // Tensors up to this size get ordinary memory: all_reduce() then needs one rendezvous instead of
  // two.
  static constexpr std::size_t small_bytes = std::size_t{4} << 10;

  static std::shared_ptr<RegisteredPool> of(const ProcessGroup& group);

  // An uninitialised, contiguous tensor, in the pool if on the CPU. All ranks of `group`, which
  // owns this pool, request equally many bytes. Collective if the region grows, as it may for the
  // largest tensor so far. Errors: as ProcessGroup::allocate(), except for too little memory.
  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& type, const ProcessGroup& group,
                   const CallOptions& options = {});

  std::size_t bytes();

 private:
  std::shared_ptr<RegisteredRegion> region_for(std::size_t bytes, const ProcessGroup& group,
                                               const CallOptions& options);

  std::mutex mutex_;
  std::shared_ptr<RegisteredRegion> region_;
  std::size_t limit_ = most_bytes;  // Reduced after a host had too little memory.
};

}  // namespace lockstep::tensor
