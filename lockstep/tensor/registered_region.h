// Allocates tensors in registered memory, without other ranks.
//
// Thread safety: full.
// Lifetime: a tensor keeps its region; both may outlive the group.

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

class RegisteredRegion {
 public:
  explicit RegisteredRegion(RegisteredMemory memory);

  const RegisteredMemory& memory() const { return memory_; }

  // The block's size for `bytes`, also for 0.
  static std::size_t block_bytes(std::size_t bytes);

  // Aligned to cache lines. Null if no free block is large enough.
  void* take(std::size_t bytes);
  void give_back(void* block);

 private:
  const RegisteredMemory memory_;
  std::mutex mutex_;
  std::map<std::byte*, std::size_t> free_;  // Sizes by address; neighbours are joined.
  std::map<std::byte*, std::size_t> taken_;
};

// An uninitialised tensor in a block of `region`; undefined if the region is full. A resize_() to
// more bytes moves the tensor to ordinary memory.
at::Tensor empty_in(const std::shared_ptr<RegisteredRegion>& region, at::IntArrayRef sizes,
                    at::ScalarType type, at::MemoryFormat format = at::MemoryFormat::Contiguous);

}  // namespace lockstep
