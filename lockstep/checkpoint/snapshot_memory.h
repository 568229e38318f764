// Memory for a copy of the state to be saved. It is kept from one checkpoint to the next, because
// allocating a page costs more than copying one.
//
// Errors: system if the host has too little memory.

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

  // Returns at least `size` bytes, aligned to a page, with undefined contents. Invalidates the
  // pointer of an earlier call.
  std::byte* reserve(std::size_t size);

 private:
  void release();

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace lockstep
