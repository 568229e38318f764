// The registered memory of one group: every rank's part of it, as this process has it mapped.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "lockstep/comm/buffer.h"
#include "lockstep/comm/registered_memory.h"
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
    SharedMemory memory;
    std::size_t stride;  // Bytes from one rank's part to the next.
    std::uint64_t number;
  };

  void forget_unused();

  std::uint64_t made_ = 0;
  std::map<const std::byte*, std::weak_ptr<Region>> by_part_;  // By the begin of this rank's.
  std::map<std::uint64_t, std::weak_ptr<Region>> by_number_;
};

}  // namespace lockstep
