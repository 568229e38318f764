// Collectives in which every rank works on its peers' buffers: registered memory, or memory read
// through the kernel.
//
// Thread safety: one thread only.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/shm/barrier.h"
#include "lockstep/comm/shm/group_segment.h"
#include "lockstep/comm/shm/parts.h"
#include "lockstep/comm/shm/peer_memory.h"
#include "lockstep/comm/shm/reduction.h"
#include "lockstep/comm/shm/regions.h"

namespace lockstep::comm {

// Whether peers can read this rank's input, or write its output, directly.
bool can_read_inputs(Operation operation);
bool can_write_outputs(Operation operation);

// Whether reading unregistered memory is faster than staging. `crowded`: ranks outnumber cores. All
// ranks get the same answer.
bool reads_outside(const Collective& collective, int ranks, bool crowded);

class InPlace {
 public:
  // All arguments must outlive it.
  InPlace(const GroupSegment& segment, Barrier& barrier, Regions& regions, const PeerMemory& memory,
          Reduction& reduction, int rank, int ranks)
      : segment_(segment),
        barrier_(barrier),
        regions_(regions),
        memory_(memory),
        reduction_(reduction),
        rank_(rank),
        size_(ranks) {}

  // Whether all ranks' inputs, or all outputs, can be reached. All ranks get the same answer.
  bool is_possible() const;

  bool is_outside(int rank) const;

  // Does this rank's part. The result is complete after all ranks' next rendezvous. False if this
  // rank could not read unregistered memory.
  bool run(const Collective& collective);

 private:
  bool can_reach(std::uint64_t RankBlock::Entry::*place) const;
  std::byte* input_of(int rank) const;
  std::byte* output_of(int rank) const;
  void reduce_slice(const Collective& collective);
  bool all_reduce_outside(const Collective& collective);
  bool reduce_slice_outside(const Collective& collective);
  void reduce_part(const Collective& collective);
  bool fetch(const Collective& collective, int peer, std::uint64_t location, std::size_t from,
             Range to) const;
  bool read_outside(const Collective& collective, int peer, std::byte* to, std::uint64_t from,
                    std::size_t bytes) const;
  bool read(const Collective& collective) const;
  void write(const Collective& collective);

  const GroupSegment& segment_;
  Barrier& barrier_;
  Regions& regions_;
  const PeerMemory& memory_;
  Reduction& reduction_;
  const int rank_;
  const int size_;
  std::vector<std::byte> chunks_;  // Chunks of each peer's memory, to reduce.
};

}  // namespace lockstep::comm
