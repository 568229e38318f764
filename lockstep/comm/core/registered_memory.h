// Memory that all ranks of a host have mapped: collectives on it copy nothing.
//
// Made by ProcessGroup::allocate(), or as one block for all ranks by allocate_shared(). Zero at
// first.
//
// Thread safety: as a shared_ptr's.
// Lifetime: a copyable handle. The memory stays mapped until its last handle is gone, even after
// the group was destroyed.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

namespace lockstep {

class RegisteredMemory {
 public:
  RegisteredMemory() = default;

  // `owner` keeps the `bytes` bytes at `data` mapped.
  RegisteredMemory(std::shared_ptr<const void> owner, void* data, std::size_t bytes)
      : owner_(std::move(owner)), data_(data), bytes_(bytes) {}

  // This rank's own part, 64-byte aligned; peers write into it during collectives only. From
  // allocate_shared(), the one block.
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<const void> owner_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace lockstep
