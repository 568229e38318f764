// The registered memory of one group: every rank's part of it, as this process has it mapped.
//
// Thread safety: none.

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
  // Bytes of shared memory that `ranks` parts of `bytes` bytes need.
  static std::size_t bytes_for(std::size_t bytes, int ranks);

  // A new region in `memory`. Ranks make the same regions in the same order.
  RegisteredMemory add(SharedMemory memory, std::size_t bytes, int rank);

  // What ranks tell each other of a buffer: region << 40 | offset into its rank's part; 0 for
  // memory that is not registered, or of which the last handle is gone.
  std::uint64_t locate(const Buffer& buffer) const;

  static std::uint64_t region_of(std::uint64_t location) { return location >> 40; }

  // Where that is of `rank`'s, in this process. This rank must have located a buffer in the same
  // region.
  std::byte* address(std::uint64_t location, int rank) const;

 private:
  struct Region {
    std::uint64_t number;  // From 1.
    std::byte* all;        // All ranks' parts,
    std::size_t stride;    // so many bytes from one to the next;
    std::byte* mine;       // this rank's.
    std::weak_ptr<const void> owner;
  };

  std::uint64_t made_ = 0;
  std::vector<Region> regions_;
};

}  // namespace lockstep
