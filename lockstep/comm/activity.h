// What a rank is doing, for its peers to read while they wait for it.
//
// Written by that rank alone, with relaxed stores: readers get a description, not a guarantee.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/comm/operation.h"
#include "lockstep/comm/time.h"

namespace lockstep {

// A group's name, cut to 48 bytes.
using GroupName = std::array<std::uint64_t, 6>;
GroupName pack_group_name(std::string_view name);

struct Activity {
  std::atomic<std::uint64_t> heartbeat;  // Ticks ten times a second while the process runs.
  std::atomic<std::uint64_t> sequence;   // Of its latest operation; 0 before the first.
  std::atomic<Operation> operation;
  std::atomic<bool> inside;          // It has not returned from it.
  std::atomic<std::int64_t> since;   // The steady clock, in ns, when it entered or returned.
  std::array<std::atomic<std::uint64_t>, 6> group;  // Of that operation.

  void enter(const GroupName& name, Operation what, std::uint64_t number, Clock::time_point now) {
    for (std::size_t i = 0; i < name.size(); ++i)
      group[i].store(name[i], std::memory_order_relaxed);
    operation.store(what, std::memory_order_relaxed);
    sequence.store(number, std::memory_order_relaxed);
    since.store(now.time_since_epoch().count(), std::memory_order_relaxed);
    inside.store(true, std::memory_order_relaxed);
  }

  void leave(Clock::time_point now) {
    inside.store(false, std::memory_order_relaxed);
    since.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  }
};

// Such as "in all_reduce #812 of group world for 3.2 s", "outside of collectives for 34.0 s, after
// all_reduce #811 of group world" or "yet to call its first collective".
std::string describe(const Activity& activity);

}  // namespace lockstep
