// Memory that an engine may still touch when its caller has given up: what keeps it alive.
//
// Thread safety: none.

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
  // The same memory, of which owner_of() knows from now on.
  RegisteredMemory add(RegisteredMemory memory);

  // Memory of the group's own for a buffer like `shape`, the `which`th at a time; stays until a
  // larger one is asked for, or the last call that has it is over.
  Buffer scratch(std::size_t which, const Buffer& shape);

  // Whoever holds it keeps all of `buffer` where it is; null for memory that is not known, and for
  // an empty buffer.
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
