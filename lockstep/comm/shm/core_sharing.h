// Which ranks of a group are on one core, and the way from there.
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

#include "lockstep/base/time.h"
#include "lockstep/comm/shm/group_segment.h"

namespace lockstep::comm {

class CoreSharing {
 public:
  // `segment` must outlive it.
  CoreSharing(const GroupSegment& segment, int rank, int size);

  // Tells the others on which core this thread is, and returns it. Costs a few nanoseconds: the
  // line, which peers read, is written only after a change.
  int note() const;

  // Whether this thread is where `peer` was at its last call. After many such calls in a row it
  // moves to another core that it may use, and its affinity stays as it is. It does so at most
  // every 50 ms, and half as often each time until it has been elsewhere for many calls.
  bool with(int peer);

  bool with_any() const;

 private:
  bool is_on_core_of(int peer) const;
  void move();

  const GroupSegment& segment_;
  const int rank_;
  const int size_;
  int met_ = 0;    // Calls in a row.
  int apart_ = 0;  // Calls in a row, counted up to a limit.
  Clock::time_point moved_at_ = {};
  Clock::duration pause_;  // Between two moves, at least.
};

}  // namespace lockstep::comm
