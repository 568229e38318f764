// The shared memory of one group: flags to wait on, each rank's call, and staging buffers.
//
// Thread safety: in each rank, one thread for entries and steps, another for pipes.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lockstep/base/memory.h"
#include "lockstep/comm/core/abort_reason.h"
#include "lockstep/comm/core/signature.h"
#include "lockstep/comm/shm/peers.h"

namespace lockstep::comm {

// A counter that only grows, modulo 2^32, on which ranks wait.
struct Flag {
  std::atomic<std::uint32_t> value;
  std::atomic<std::uint32_t> sleepers;  // Waiters that may sleep on `value`.

  bool reached(std::uint32_t target) const {
    return static_cast<std::int32_t>(value.load(std::memory_order_acquire) - target) >= 0;
  }
};

// Only its rank writes it, except Flag::sleepers, `doorbell` and `pipes`.
struct RankBlock {
  // The flag's release store publishes the other members, which share its cache line. Two entries
  // alternate: a rank may enter the next call while another still reads the last entry.
  struct alignas(64) Entry {
    Flag arrived;
    std::uint64_t input;  // Location: see Regions. 0 if peers must not use it.
    std::uint64_t output;
    Signature signature;
  };

  Entry entry[2];
  alignas(64) Flag step;
  std::atomic<std::uint32_t> could_not_read;  // 1 if it failed to read a peer in its last try.
  std::uint64_t reduced;               // Elements of its slice that hold the result: see InPlace.
  std::uint64_t number;                // 0 if peers must not read its memory: see PeerMemory.
  std::uint64_t number_at;             // Its address in the rank's own memory.
  alignas(64) Flag doorbell;           // Rung by peers that move a message or leave.
  std::atomic<std::uint32_t> left;     // 1 once the rank makes no more calls.
  std::atomic<std::uint32_t> refused;  // 1 when the rank could not do its part: see `reason`.
  std::atomic<std::int32_t> core;      // Core of its last call or wait.
  std::atomic<std::int32_t> message_core;  // Core of its last wait for a message.
  char reason[224];                        // This rank's label if calls differ; or why it refused.
  std::uint64_t region;                    // Rank 0's: number of the region being allocated.
  cpu_set_t cores;                         // It may run on these.
  // A bit for each receiver whose pipe is claimed: see ShmPipes.
  std::atomic<std::uint64_t> pipes[16];
};

class GroupSegment {
 public:
  // Most data that a rank writes at a time.
  static constexpr std::size_t chunk_bytes = 128 << 10;

  // Size of each rank's staging buffer, a ring. It should exceed a second-level cache
  // (ownership.h); all together should fit the last-level cache.
  static std::size_t staging_bytes(int ranks) {
    return chunk_bytes * std::clamp<std::size_t>(128 / static_cast<std::size_t>(ranks), 4, 16);
  }
  static constexpr int most_ranks = 64 * 16;

  struct Common {
    alignas(64) std::atomic<std::uint32_t> arrivals;
    alignas(64) Flag all_here;       // Counts rendezvous.
    std::atomic<std::int32_t> last;  // The last rank at the latest one.
    alignas(
        64) std::atomic<std::uint32_t> abort_state;  // 0; 1 while the next members are written; 2.
    std::int32_t giver;                              // Rank that aborted; -1 on another host.
    std::int32_t pid;                                // Its process.
    std::int64_t aborted_at;                         // Time of Clock.
    // An AbortReason, with texts cut to fit.
    Fault fault;
    std::int32_t rank;
    std::int32_t more;
    std::int32_t blamed;  // Length of `ranks`.
    std::int32_t ranks[most_blamed];
    char call[256];
    char reason[500];
    std::uint64_t number;                           // Random. Written by rank 0 before it arrives.
    std::atomic<std::uint32_t> is_awaited_in_vain;  // A rank of another host waited too long.
  };

  // Bytes before the staging buffers: whole pages, because each rank reserves its buffer's pages.
  static std::size_t head_bytes(int ranks) {
    return whole_pages(sizeof(Common) + static_cast<std::size_t>(ranks) * sizeof(RankBlock));
  }

  static std::size_t bytes_for(int ranks) {
    return head_bytes(ranks) + static_cast<std::size_t>(ranks) * staging_bytes(ranks);
  }

  GroupSegment(SharedMemory memory, int ranks) : memory_(std::move(memory)), ranks_(ranks) {}

  Common& common() const { return *reinterpret_cast<Common*>(memory_.get()); }

  RankBlock& block(int rank) const {
    return reinterpret_cast<RankBlock*>(memory_.get() + sizeof(Common))[rank];
  }

  std::byte* staging(int rank) const {
    return memory_.get() + head_bytes(ranks_) +
           static_cast<std::size_t>(rank) * staging_bytes(ranks_);
  }

 private:
  SharedMemory memory_;
  int ranks_;
};

}  // namespace lockstep::comm
