// The registered memory of one group: every rank's part, as mapped in this process.
//
// Thread safety: one thread only.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/core/registered_memory.h"
#include "lockstep/comm/shm/peers.h"

namespace lockstep {

class Regions {
 public:
  // Returns the bytes of shared memory for `ranks` parts of `bytes` bytes.
  static std::size_t bytes_for(std::size_t bytes, int ranks);

  // Adds a region in `memory`. Ranks add the same regions in the same order.
  RegisteredMemory add(SharedMemory memory, std::size_t bytes, int rank);

  // Returns a location that ranks exchange for a buffer: region << 40 | offset in its rank's part.
  // 0 for memory that is not registered, or whose last handle is gone.
  std::uint64_t locate(const Buffer& buffer) const;

  static std::uint64_t region_of(std::uint64_t location) { return location >> 40; }

  // Returns the address of that location in `rank`'s part, in this process. This rank must have
  // located a buffer in the same region.
  std::byte* address(std::uint64_t location, int rank) const;

 private:
  struct Region {
    std::uint64_t number;  // From 1.
    std::byte* all;        // All ranks' parts.
    std::size_t stride;    // Bytes from one part to the next.
    std::byte* mine;       // This rank's part.
    std::weak_ptr<const void> owner;
  };

  std::uint64_t made_ = 0;
  std::vector<Region> regions_;
};

}  // namespace lockstep
