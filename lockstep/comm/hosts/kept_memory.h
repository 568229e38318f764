// Keeps memory alive that an engine may still use after its caller has given up.
//
// Thread safety: one thread only.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/core/registered_memory.h"

namespace lockstep {

class KeptMemory {
 public:
  // Registers `memory` for owner_of() and returns it.
  RegisteredMemory add(RegisteredMemory memory);

  // Returns memory of the group for a buffer like `shape`; `which` numbers those in use at a time.
  // It stays until a larger one is needed, or until the last call with it ends.
  Buffer scratch(std::size_t which, const Buffer& shape);

  // Returns a handle that keeps all of `buffer` valid; null for unknown memory and for an empty
  // buffer.
  std::shared_ptr<const void> owner_of(const Buffer& buffer) const;

 private:
  struct Known {
    std::weak_ptr<RegisteredMemory> memory;
    const std::byte* data;
    std::size_t bytes;
  };
  struct Scratch {
    std::shared_ptr<std::byte[]> data;
    std::size_t bytes = 0;
  };

  std::vector<Known> known_;
  std::vector<Scratch> scratch_;
};

}  // namespace lockstep
