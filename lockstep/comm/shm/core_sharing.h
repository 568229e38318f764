// Which ranks of a group are on one core, and the way from there. A rank's collectives and its
// messages may be on different threads, so each of the two has an object of this class.
//
// Ranks that nothing has bound may come to be on one core although there are enough. As they take
// turns, the kernel sees one runnable thread there and leaves them: on a host of two idle cores for
// tens of thousands of calls. A rank that spins then keeps the one for which it waits from running,
// so it must sleep at once. That makes a call of 1 KB 8 times as fast (8 us instead of 65), and a
// core of its own 17 times more. A rank that has met a peer on its core often enough moves itself.
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
  // Ranks tell each other in `core` of their lanes; until note(), this one is nowhere. `segment`
  // must outlive it.
  CoreSharing(const GroupSegment& segment, std::atomic<std::int32_t> Lane::*core, int rank,
              int size);

  // Tells the others on which core this thread is, and returns it. Costs a few nanoseconds: the
  // line, which peers read, is written only after a change.
  int note() const;

  // Whether this thread is where `peer` was at its last call or wait. After many such calls in a
  // row it moves to another core that it may use, and its affinity stays as it is. It does so at
  // most every 50 ms, and half as often each time until it has been elsewhere for many calls.
  bool with(int peer);

  // The same for all peers. False for a thread that comes while another one looks.
  bool with_any();

 private:
  std::atomic<std::int32_t>& core_of(int peer) const { return segment_.lane(peer).*core_; }
  bool is_on_core_of(int peer) const;
  bool meet(int peer);
  bool be_apart();
  void move();

  const GroupSegment& segment_;
  std::atomic<std::int32_t> Lane::*const core_;
  const int rank_;
  const int size_;
  std::mutex looking_;  // With with_any(), guards the members below.
  int met_ = 0;         // Calls in a row.
  int apart_ = 0;       // Calls in a row, counted up to a limit.
  Clock::time_point moved_at_ = {};
  Clock::duration pause_;  // Between two moves, at least.
};

}  // namespace lockstep::comm
