// A rank's current operation, in shared memory for peers that wait for the rank.
//
// Only that rank writes it, with relaxed stores, so readers may see a mixed state.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/base/error.h"
#include "lockstep/base/time.h"
#include "lockstep/job/detail/operation.h"

namespace lockstep {

// Time stamps that cost a few nanoseconds, for display only; deadlines use Clock. On x86-64 they
// are the time stamp counter, which runs at a constant rate on all cores of current processors.
// Elsewhere they are the steady clock.
using Ticks = std::uint64_t;

inline Ticks ticks_now() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return static_cast<Ticks>(Clock::now().time_since_epoch().count());
#endif
}

// The same instant on both clocks.
struct Moment {
  Clock::time_point time;
  Ticks ticks = 0;
};
LOCKSTEP_API Moment moment_now();

// Converts ticks of any process on this host to the steady clock.
LOCKSTEP_API Clock::time_point time_of(Ticks ticks);

// Converts a difference.
LOCKSTEP_API std::chrono::nanoseconds time_in(Ticks ticks);

// A group's name, cut to 48 bytes.
using GroupName = std::array<std::uint64_t, 6>;
LOCKSTEP_API GroupName pack_group_name(std::string_view name);

// A rank's latest collective, or its latest message.
struct ShownCall {
  // sequence << 16 | operation << 8 | 1 while it runs. 0 before the first.
  std::atomic<std::uint64_t> state;
  std::atomic<Ticks> since;                         // When it began or ended.
  std::array<std::atomic<std::uint64_t>, 6> group;  // Name of its group.

  void enter(const GroupName& name, Operation what, std::uint64_t number, Ticks now) {
    for (std::size_t i = 0; i < name.size(); ++i)
      group[i].store(name[i], std::memory_order_relaxed);
    since.store(now, std::memory_order_relaxed);
    state.store(number << 16 | static_cast<std::uint64_t>(what) << 8 | 1,
                std::memory_order_relaxed);
  }

  void leave(Ticks now) {
    since.store(now, std::memory_order_relaxed);
    state.store(state.load(std::memory_order_relaxed) & ~std::uint64_t{1},
                std::memory_order_relaxed);
  }

  std::uint64_t sequence() const { return state.load(std::memory_order_relaxed) >> 16; }
  Operation operation() const {
    return static_cast<Operation>(state.load(std::memory_order_relaxed) >> 8 & 0xff);
  }
  bool inside() const { return (state.load(std::memory_order_relaxed) & 1) != 0; }
};

struct Activity {
  std::atomic<std::uint64_t> heartbeat;  // Increases ten times a second while the process runs.
  ShownCall collective;
  ShownCall message;                // Numbered separately from collectives, on each rank of its
                                    // group.
  std::atomic<std::int32_t> peer;   // The message's peer, as a rank of its group; negative for any.
  std::atomic<Ticks> aborted_at;    // Time of the latest ProcessGroup::abort(); 0 if never.
  std::atomic<std::uint64_t> step;  // From ProcessGroup::set_step(); 0 before the first.
  ShownCall making;  // The creation of a sub-group; its name contains the list of ranks, its number
                     // counts attempts.
  // Calls begun after the group broke, by threads that had received its Error. Calls of other
  // threads do not count.
  std::atomic<std::uint64_t> resumed;

  // Whether the rank may be waiting for others.
  bool inside() const { return collective.inside() || message.inside() || making.inside(); }

  // Its latest collective or message; sequence() is 0 before the first.
  const ShownCall& latest() const {
    if (collective.inside() != message.inside()) return collective.inside() ? collective : message;
    return message.since.load(std::memory_order_relaxed) >
                   collective.since.load(std::memory_order_relaxed)
               ? message
               : collective;
  }
};

// Returns the name of the call's group; empty before the first call.
LOCKSTEP_API std::string group_of(const ShownCall& call);

// Fills in the rank's current or latest operation.
LOCKSTEP_API void note_latest(Failure& failure, const Activity& activity);

// Returns text such as "in all_reduce #812 of group world for 3.2 s", "in recv #3 from rank 1 of
// group world for 3.2 s", "making group world.x of ranks 0,1 for 3.2 s", "outside of collectives
// for 34.0 s, after all_reduce #811 of group world" or "yet to call its first collective".
LOCKSTEP_API std::string describe(const Activity& activity);

}  // namespace lockstep
