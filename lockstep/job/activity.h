// A rank's current operation, in shared memory for peers that wait for it. Only the rank writes it,
// with relaxed stores, so readers may see a mixed state.

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

// Time stamps that cost a few nanoseconds, for display only. On x86-64 they are the time stamp
// counter, which runs at a constant rate on all cores; elsewhere the steady clock.
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

// The time of ticks from any process on this host.
LOCKSTEP_API Clock::time_point time_of(Ticks ticks);

// The duration of a difference of ticks.
LOCKSTEP_API std::chrono::nanoseconds time_in(Ticks ticks);

// A group's name, cut to 48 bytes.
using GroupName = std::array<std::uint64_t, 6>;
LOCKSTEP_API GroupName pack_group_name(std::string_view name);

// A rank's latest collective, or its latest message.
struct ShownCall {
  // sequence << 16 | operation << 8 | running; 0 before the first.
  std::atomic<std::uint64_t> state;
  std::atomic<Ticks> since;  // When it began or ended.
  std::array<std::atomic<std::uint64_t>, 6> group;

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
  std::atomic<std::uint64_t> heartbeat;  // Increases ten times a second.
  ShownCall collective;
  ShownCall message;                // Numbered separately from collectives.
  std::atomic<std::int32_t> peer;   // The message's peer in its group; negative for any.
  std::atomic<Ticks> aborted_at;    // Latest ProcessGroup::abort(); 0 if never.
  std::atomic<std::uint64_t> step;  // From ProcessGroup::set_step(); 0 before it.
  ShownCall making;  // A sub-group: the name contains its ranks, the number counts attempts.
  // Calls begun after the group broke, by threads that had received its Error.
  std::atomic<std::uint64_t> resumed;

  bool inside() const { return collective.inside() || message.inside() || making.inside(); }

  const ShownCall& latest() const {
    if (collective.inside() != message.inside()) return collective.inside() ? collective : message;
    return message.since.load(std::memory_order_relaxed) >
                   collective.since.load(std::memory_order_relaxed)
               ? message
               : collective;
  }
};

// The name of the call's group; empty before the first call.
LOCKSTEP_API std::string group_of(const ShownCall& call);

LOCKSTEP_API void note_latest(Failure& failure, const Activity& activity);

// Returns text such as "in all_reduce #812 of group world for 3.2 s", or "outside of collectives
// for 34.0 s".
LOCKSTEP_API std::string describe(const Activity& activity);

}  // namespace lockstep
