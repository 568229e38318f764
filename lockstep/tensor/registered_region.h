// Tensors in registered memory that a rank allocates and frees independently of other ranks.
//
// Thread safety: any thread may call any function.
// Lifetime: a tensor keeps its region, whose memory outlives the group.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Registered memory whose blocks can be allocated and freed in any order.
class RegisteredRegion {
 public:
  explicit RegisteredRegion(RegisteredMemory memory);

  const RegisteredMemory& memory() const { return memory_; }

  // The size of the block for `bytes`. Empty tensors have a block too.
  static std::size_t block_bytes(std::size_t bytes);

  // Null if no free block is large enough. Blocks start at a cache line.
  void* take(std::size_t bytes);
  void give_back(void* block);

 private:
  const RegisteredMemory memory_;
  std::mutex mutex_;
  std::map<std::byte*, std::size_t> free_;  // Sizes by address; neighbours are joined.
  std::map<std::byte*, std::size_t> taken_;
};

// An uninitialised tensor in a block of `region`, which is freed with its last reference. Undefined
// if the region is full. A resize_() to more bytes moves the tensor to ordinary memory.
at::Tensor empty_in(const std::shared_ptr<RegisteredRegion>& region, at::IntArrayRef sizes,
                    at::ScalarType type, at::MemoryFormat format = at::MemoryFormat::Contiguous);

}  // namespace lockstep
