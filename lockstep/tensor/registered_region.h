// Tensors in registered memory that a rank takes and gives back as it likes.
//
// Thread safety: every function may be called from any thread.
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

// Registered memory whose parts, the blocks, are taken and given back in any order.
class RegisteredRegion {
 public:
  explicit RegisteredRegion(RegisteredMemory memory);

  const RegisteredMemory& memory() const { return memory_; }

  // Bytes of the block for `bytes`. Empty tensors have a block too.
  static std::size_t block_bytes(std::size_t bytes);

  // Null when there is no room. Begins at a cache line.
  void* take(std::size_t bytes);
  void give_back(void* block);

 private:
  const RegisteredMemory memory_;
  std::mutex mutex_;
  std::map<std::byte*, std::size_t> free_;  // Bytes by place; neighbours are joined.
  std::map<std::byte*, std::size_t> taken_;
};

// An uninitialised tensor of this type, in a block of `region` that is free again when the last
// reference to the tensor dies. Undefined if the region has no room. A resize_() to more bytes
// moves the tensor to ordinary memory.
at::Tensor empty_in(const std::shared_ptr<RegisteredRegion>& region, at::IntArrayRef sizes,
                    at::ScalarType type, at::MemoryFormat format = at::MemoryFormat::Contiguous);

}  // namespace lockstep
