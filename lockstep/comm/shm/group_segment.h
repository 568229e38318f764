// The memory in which the ranks of one group meet: flags to wait on, what each rank says of the
// collective that it has entered, and room for data on its way.
//
// Thread safety: one thread of each rank for its entries and steps, another one for its pipes.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lockstep/base/error.h"
#include "lockstep/comm/core/signature.h"
#include "lockstep/comm/shm/peers.h"

namespace lockstep {

// A counter that only grows, modulo 2^32, and for which others wait.
struct Flag {
  std::atomic<std::uint32_t> value;
  std::atomic<std::uint32_t> sleepers;  // How many may be asleep on `value`.

  bool reached(std::uint32_t target) const {
    return static_cast<std::int32_t>(value.load(std::memory_order_acquire) - target) >= 0;
  }
};

// One rank's lane; written by that rank, but for Flag::sleepers and `doorbell`.
struct Lane {
  // What the rank says on entering an operation; one cache line, so that whoever sees the flag
  // has the rest too. Two, used in turn: a rank may enter the next operation while another one
  // still reads what was said of this one.
  struct alignas(64) Entry {
    Flag arrived;         // Counts the operations entered.
    std::uint64_t input;  // Where registered memory lies: see Regions. 0 for any other.
    std::uint64_t output;
    Signature signature;
  };

  Entry entry[2];
  alignas(64) Flag step;               // Counts the steps inside of operations.
  alignas(64) Flag doorbell;           // Rung by peers that have moved a message of this rank.
  std::atomic<std::uint32_t> refused;  // 1 when it could not do its part; `reason` says why.
  char reason[244];                    // Of a call in which ranks differ, its label.
  cpu_set_t cores;                     // On which it may run.
  // Set for each rank for which this one has offered a pipe: see ShmPipes.
  std::atomic<std::uint64_t> pipes[16];
};

class GroupSegment {
 public:
  // Of data on its way that a rank puts at a time.
  static constexpr std::size_t chunk_bytes = 128 << 10;

  // Each rank's room for it, used from begin to end and then again. It should be larger than a
  // second-level cache (see ownership.h), and all ranks' smaller than the last-level cache.
  static std::size_t room_bytes(int ranks) {
    return chunk_bytes * std::clamp<std::size_t>(128 / static_cast<std::size_t>(ranks), 4, 16);
  }
  static constexpr int most_ranks = 64 * 16;

  // What concerns all ranks.
  struct Common {
    alignas(64) std::atomic<std::uint32_t> arrivals;  // Of all ranks, at all meetings.
    alignas(64) Flag all_here;                        // Counts the meetings at which all are.
    alignas(64) std::atomic<std::uint32_t> given_up;  // 0; 1 while `reason` is written; 2.
    Fault fault;
    std::int32_t rank;  // Who did, in this group (-1 for a rank of another host),
    std::int32_t pid;   // and its process.
    char reason[500];
  };

  static std::size_t bytes_for(int ranks) {
    return sizeof(Common) + static_cast<std::size_t>(ranks) * (sizeof(Lane) + room_bytes(ranks));
  }

  GroupSegment(SharedMemory memory, int ranks) : memory_(std::move(memory)), ranks_(ranks) {}

  Common& common() const { return *reinterpret_cast<Common*>(memory_.get()); }

  Lane& lane(int rank) const {
    return reinterpret_cast<Lane*>(memory_.get() + sizeof(Common))[rank];
  }

  std::byte* room(int rank) const {
    return memory_.get() + sizeof(Common) + static_cast<std::size_t>(ranks_) * sizeof(Lane) +
           static_cast<std::size_t>(rank) * room_bytes(ranks_);
  }

 private:
  SharedMemory memory_;
  int ranks_;
};

}  // namespace lockstep
