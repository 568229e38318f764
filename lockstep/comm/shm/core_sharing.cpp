// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/core_sharing.h"

#include <sched.h>

#include <mutex>

namespace lockstep::comm {
namespace {

constexpr int often = 50;         // Calls.
constexpr int long_apart = 1000;  // Calls after which a move counts as successful.
constexpr std::chrono::milliseconds first_pause{50};

}  // namespace

CoreSharing::CoreSharing(const GroupSegment& segment, std::atomic<std::int32_t> RankBlock::*core,
                         int rank, int size)
    : segment_(segment), core_(core), rank_(rank), size_(size), pause_(first_pause) {
  core_of(rank).store(-1);
}

int CoreSharing::note() const {
  const int core = ::sched_getcpu();
  auto& noted = core_of(rank_);
  if (noted.load(std::memory_order_relaxed) != core) noted.store(core, std::memory_order_relaxed);
  return core;
}

bool CoreSharing::is_on_core_of(int peer) const {
  return note() == core_of(peer).load(std::memory_order_relaxed);
}

bool CoreSharing::with(int peer) { return is_on_core_of(peer) ? meet(peer) : be_apart(); }

bool CoreSharing::with_any() {
  const std::unique_lock lock(looking_, std::try_to_lock);
  if (!lock) return false;
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_ && is_on_core_of(peer)) return meet(peer);
  return be_apart();
}

bool CoreSharing::be_apart() {
  met_ = 0;
  const int enough = long_apart * (size_ - 1);  // A call may check each peer.
  if (apart_ < enough && ++apart_ == enough) pause_ = first_pause;
  return false;
}

bool CoreSharing::meet(int peer) {
  apart_ = 0;
  if (++met_ < often) return true;
  met_ = 0;
  const auto now = Clock::now();
  if (now < moved_at_ + pause_) return true;
  if (moved_at_ != Clock::time_point{}) pause_ *= 2;
  move();
  moved_at_ = now;
  return is_on_core_of(peer);
}

// To the next core where no rank of the group was. Restricting the affinity moves the thread;
// restoring it does not.
void CoreSharing::move() {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  cpu_set_t others = allowed;
  for (int peer = 0; peer < size_; ++peer)
    CPU_CLR(static_cast<std::size_t>(core_of(peer).load()), &others);
  const int here = note();
  for (int step = 1; step < CPU_SETSIZE; ++step) {
    const auto core = static_cast<std::size_t>((here + step) % CPU_SETSIZE);
    if (!CPU_ISSET(core, &others)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ::sched_setaffinity(0, sizeof one, &one);
    ::sched_setaffinity(0, sizeof allowed, &allowed);
    return;
  }
}

}  // namespace lockstep::comm
