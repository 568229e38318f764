// Registered memory of a group, and collectives on it: every rank works directly on its peers'
// buffers.
//
// Thread safety: one thread only.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/shm/barrier.h"
#include "lockstep/comm/shm/peers.h"
#include "lockstep/comm/shm/reduction.h"

namespace lockstep::comm {

// The registered memory of one group: every rank's part, as mapped in this process.
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

// Whether peers can read this rank's input, or write its output, directly.
bool can_read_inputs(Operation operation);
bool can_write_outputs(Operation operation);

class InPlace {
 public:
  // All arguments must outlive it.
  InPlace(const Barrier& barrier, const Regions& regions, Reduction& reduction, int rank, int ranks)
      : barrier_(barrier), regions_(regions), reduction_(reduction), rank_(rank), size_(ranks) {}

  // Whether all ranks' inputs, or all outputs, lie in one region. All ranks get the same answer.
  bool is_possible() const;

  // Does this rank's part. The result is complete on all ranks after their next rendezvous.
  void run(const Collective& collective);

 private:
  bool in_one_region(std::uint64_t Lane::Entry::*place) const;
  std::byte* input_of(int rank) const;
  std::byte* output_of(int rank) const;
  void reduce_slice(const Collective& collective);
  void reduce_part(const Collective& collective);
  void read(const Collective& collective);
  void write(const Collective& collective);

  const Barrier& barrier_;
  const Regions& regions_;
  Reduction& reduction_;
  const int rank_;
  const int size_;
};

}  // namespace lockstep::comm
