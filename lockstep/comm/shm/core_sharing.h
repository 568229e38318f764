// Detects ranks of a group on one core, and moves them apart (docs/internals/communication.md).
// Collectives and messages, which may use different threads, have one object each.
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
  // Ranks publish their core in `core` of their blocks, this rank with note(). `segment` must
  // outlive it.
  CoreSharing(const GroupSegment& segment, std::atomic<std::int32_t> RankBlock::*core, int rank,
              int size);

  // Publishes the core of this thread, and returns it.
  int note() const;

  // Whether this thread is on the core that `peer` published last. After many true results in a
  // row, moves the thread to another allowed core and keeps its affinity mask. The least pause
  // between moves, 50 ms, doubles in each move but the first. Many false results in a row reset it.
  bool with(int peer);

  // As with(), for any peer. False while another thread calls it.
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
  std::mutex looking_;  // Guards the members below in with_any(). Only one thread calls with().
  int met_ = 0;         // Calls in a row.
  int apart_ = 0;       // Calls in a row, counted up to a limit.
  Clock::time_point moved_at_ = {};
  Clock::duration pause_;  // Minimum time between two moves.
};

}  // namespace lockstep::comm
