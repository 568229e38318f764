// Detects ranks of a group on one core, and moves them apart. A rank's collectives and messages may
// use different threads, so each of the two has an object of this class.
//
// Unbound ranks may share a core although there are enough cores. They run alternately, so the
// kernel sees one runnable thread there and leaves them. On a host of two idle cores this lasted
// tens of thousands of calls. A rank that spins then keeps the awaited rank from running, so it
// must sleep at once. That makes a call of 1 KB 8 times as fast (8 us instead of 65), and a core of
// its own 17 times more. A rank that repeatedly finds a peer on its core moves itself.
//
// Thread safety: one thread of the rank for with(), any for the other members.

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

  // Publishes the core of this thread, and returns it. Costs a few nanoseconds: the shared cache
  // line is written only after a change.
  int note() const;

  // Whether this thread is on the core where `peer` was at its last call or wait. After many such
  // calls in a row, the thread moves to another allowed core; its affinity is unchanged. It moves
  // at most every 50 ms. Each move doubles that pause until the rank has been apart for many calls.
  bool with(int peer);

  // The same for all peers. False for a thread that calls it while another one does.
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
