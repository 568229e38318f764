// Detects ranks of a group on one core, and moves them apart. Collectives and messages, which may
// use different threads, have an object each.
//
// Unbound ranks may stay on one core. A rank that spins there keeps the awaited rank from running,
// so it must sleep at once (docs/internals/communication.md).
//
// Thread safety: one thread of the rank may call with(), any thread the other members.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "lockstep/base/time.h"
#include "lockstep/comm/shm/group_segment.h"

namespace lockstep::comm {

class CoreSharing {
 public:
  // Ranks publish their core in `core` of their blocks; before note(), this rank has none.
  // `segment` must outlive it.
  CoreSharing(const GroupSegment& segment, std::atomic<std::int32_t> RankBlock::*core, int rank,
              int size);

  // Publishes the core of this thread, and returns it.
  int note() const;

  // Whether this thread is on the core where `peer` was at its last call or wait. After many such
  // calls in a row, moves the thread to another allowed core; its affinity stays. Moves are at
  // least 50 ms apart, doubled by each until the rank has been apart for many calls.
  bool with(int peer);

  // As with(), for any peer. False for a thread that calls it while another one does.
  bool with_any();

 private:
  std::atomic<std::int32_t>& core_of(int peer) const { return segment_.block(peer).*core_; }
  bool is_on_core_of(int peer) const;
  bool meet(int peer);
  bool be_apart();
  void move();

  const GroupSegment& segment_;
  std::atomic<std::int32_t> RankBlock::*const core_;
  const int rank_;
  const int size_;
  std::mutex looking_;  // Guards the members below, in with_any().
  int met_ = 0;         // Calls in a row.
  int apart_ = 0;       // Calls in a row, counted up to a limit.
  Clock::time_point moved_at_ = {};
  Clock::duration pause_;  // Minimum time between two moves.
};

}  // namespace lockstep::comm
