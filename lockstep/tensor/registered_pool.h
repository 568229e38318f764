// Tensors in memory that all ranks of a host have mapped, for results that collectives change in
// place: docs/internals/model-parallel.md. Only the growth of the region is collective, and it
// depends only on the requested sizes. If the region is full on a rank, the tensor gets ordinary
// memory.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <mutex>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/registered_region.h"

namespace lockstep::tensor {

// Thread safety: any thread may call any member, in the same order on all ranks, like collectives.
// Lifetime: a tensor keeps its memory after the pool and the group are destroyed.
class RegisteredPool {
 public:
  // The region's bytes on each rank. It holds two to four of the largest tensors.
  static constexpr std::size_t least_bytes = std::size_t{1} << 20;
  static constexpr std::size_t most_bytes = std::size_t{256} << 20;

  // Up to this size, tensors get ordinary memory: comm sums them in one rendezvous instead of two.
  static constexpr std::size_t small_bytes = std::size_t{4} << 10;

  static std::shared_ptr<RegisteredPool> of(const ProcessGroup& group);

  // An uninitialised, contiguous tensor, in the pool if it is in CPU memory. All ranks of `group`,
  // which owns this pool, request equally many bytes. Collective if the tensor is larger than all
  // earlier ones: the region then grows. Errors: as ProcessGroup::allocate(), but not for too
  // little memory.
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
