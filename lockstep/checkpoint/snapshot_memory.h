// Memory for a copy of what is being saved. It is kept from one checkpoint to the next, as a new
// page costs more than the copy of one.
//
// Errors: system when the host has too little memory.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace lockstep {

class SnapshotMemory {
 public:
  SnapshotMemory() = default;
  ~SnapshotMemory() { release(); }
  SnapshotMemory(const SnapshotMemory&) = delete;
  SnapshotMemory& operator=(const SnapshotMemory&) = delete;

  // At least `size` bytes, aligned to a page; what they hold is undefined. Invalidates what it
  // returned before.
  std::byte* reserve(std::size_t size);

 private:
  void release();

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace lockstep
