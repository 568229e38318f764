// The memory in which the ranks of one group meet: flags to wait on, what each rank says of the
// collective that it has entered, and room for data on its way.
//
// Thread safety: one thread of each rank at a time.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lockstep/comm/host/shared_mapping.h"
#include "lockstep/comm/signature.h"

namespace lockstep {

// A counter that one rank raises and all others wait for.
struct Flag {
  std::atomic<std::uint32_t> value;     // Only ever grows, modulo 2^32.
  std::atomic<std::uint32_t> sleepers;  // How many may be asleep on `value`.

  bool reached(std::uint32_t target) const {
    return static_cast<std::int32_t>(value.load(std::memory_order_acquire) - target) >= 0;
  }
};

// One rank's lane; written by that rank, but for Flag::sleepers.
struct Lane {
  // What the rank says on entering an operation; one cache line, so that whoever sees the flag
  // has the rest too. Two, used in turn: a rank may enter the next operation while another one
  // still reads what was said of this one.
  struct alignas(64) Entry {
    Flag arrived;            // The sequence number of the operation.
    std::uint64_t location;  // Of registered memory: see ShmBackend::locate(). Else 0.
    Signature signature;
  };

  Entry entry[2];
  alignas(64) Flag step;  // Counts the steps inside of operations.
  cpu_set_t cores;        // On which it may run.
};

class GroupSegment {
 public:
  // Room for data of one rank; two halves are used in turn. Both halves of every rank's stay in
  // the second-level cache.
  static constexpr std::size_t staging_bytes = 256 << 10;

  static std::size_t bytes_for(int ranks) {
    return static_cast<std::size_t>(ranks) * (sizeof(Lane) + staging_bytes);
  }

  explicit GroupSegment(SharedMapping mapping, int ranks)
      : mapping_(std::move(mapping)), ranks_(ranks) {}

  Lane& lane(int rank) const { return reinterpret_cast<Lane*>(mapping_.data())[rank]; }

  std::byte* staging(int rank) const {
    return mapping_.data() + static_cast<std::size_t>(ranks_) * sizeof(Lane) +
           static_cast<std::size_t>(rank) * staging_bytes;
  }

 private:
  SharedMapping mapping_;
  int ranks_;
};

}  // namespace lockstep
