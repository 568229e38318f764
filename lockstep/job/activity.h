// A rank's current operation, in shared memory for waiting peers. Only the rank writes. Most stores
// are relaxed, so readers may see a mixed state.

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

// Time stamps that cost a few nanoseconds each. On x86-64: the time stamp counter, which runs at a
// constant rate on all cores; elsewhere the steady clock.
using Ticks = std::uint64_t;

inline Ticks ticks_now() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return static_cast<Ticks>(Clock::now().time_since_epoch().count());
#endif
}

struct Moment {
  Clock::time_point time;
  Ticks ticks = 0;
};
LOCKSTEP_API Moment moment_now();

// Accepts ticks from any process on this host.
LOCKSTEP_API Clock::time_point time_of(Ticks ticks);

LOCKSTEP_API std::chrono::nanoseconds time_in(Ticks ticks);

// 48 bytes: a longer name is cut and ends with a hash.
using GroupName = std::array<std::uint64_t, 6>;
LOCKSTEP_API GroupName pack_group_name(std::string_view name);

// The latest collective or message.
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
  std::atomic<std::int32_t> peer;   // Rank in the message's group; negative: any.
  std::atomic<Ticks> aborted_at;    // Latest ProcessGroup::abort(); 0 if never.
  std::atomic<std::uint64_t> step;  // ProcessGroup::set_step(); 0 before it.
  // Creation of a sub-group. `group` includes its ranks; the sequence counts attempts to make it.
  ShownCall making;
  // Calls after a failure, by threads that had received its Error.
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

// Empty before the first call.
LOCKSTEP_API std::string group_of(const ShownCall& call);

LOCKSTEP_API void note_latest(Failure& failure, const Activity& activity);

// "in all_reduce #812 of group world for 3.2 s", or "outside of collectives for 34.0 s, after ...".
LOCKSTEP_API std::string describe(const Activity& activity);

}  // namespace lockstep
