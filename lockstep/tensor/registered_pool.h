// Tensors in memory that all ranks of a host have mapped, for results that collectives change in
// place.
//
// A group has one pool on each rank: one region of registered memory, from which blocks of any size
// are taken. A block is free again when its tensor's last reference dies. Ranks sum a tensor in
// place if all of them have it in one region, at whatever offset: so only the region's growth is
// collective, and it depends on the sizes asked for alone. If the region is full on some ranks or
// on all, the tensor gets ordinary memory, and its sum passes through staging buffers.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <mutex>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/registered_region.h"

namespace lockstep::tensor {

// Thread safety: any thread may call it. Calls are in one order on all ranks, as those of
// collectives.
// Lifetime: a tensor keeps its memory, also when pool and group are gone.
class RegisteredPool {
 public:
  // The region's bytes on each rank. It holds two to four of the largest tensors.
  static constexpr std::size_t least_bytes = std::size_t{1} << 20;
  static constexpr std::size_t most_bytes = std::size_t{256} << 20;

  // Tensors of so few bytes get ordinary memory: comm sums them in one rendezvous instead of two.
  static constexpr std::size_t small_bytes = std::size_t{4} << 10;

  // The pool of `group` on this rank.
  static std::shared_ptr<RegisteredPool> of(const ProcessGroup& group);

  // An uninitialised, contiguous tensor of this type, in the pool if it is in CPU memory. All ranks
  // of `group`, whose pool this is, ask for equally many bytes. Collective where a tensor is larger
  // than all before: the region then grows. Errors: as ProcessGroup::allocate(), but too little
  // memory is none.
  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& type, const ProcessGroup& group,
                   const CallOptions& options = {});

  // Of the region now.
  std::size_t bytes();

 private:
  std::shared_ptr<RegisteredRegion> region_for(std::size_t bytes, const ProcessGroup& group,
                                               const CallOptions& options);

  std::mutex mutex_;
  std::shared_ptr<RegisteredRegion> region_;
  std::size_t limit_ = most_bytes;  // Less after a host had too little memory.
};

}  // namespace lockstep::tensor
