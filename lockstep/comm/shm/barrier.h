// Where the ranks of one group wait for each other.
//
// docs/algorithms.md describes when a rank spins, yields and sleeps. Each sleep ends within 20 ms
// to check for lost peers, an abort and the deadline.
//
// Thread safety: one thread at a time for enter(), step(), entries and report_stalled(); any thread
// for the rest.
// Errors: peer_lost, also for ranks that have left; GroupAborted; timeout, with all absent ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/shm/core_sharing.h"
#include "lockstep/comm/shm/group_segment.h"
#include "lockstep/comm/shm/peers.h"

namespace lockstep::comm {

class Barrier {
 public:
  // Returns once all ranks have made their Barrier. Aborts the group before throwing. Calls
  // `watch`, which may throw.
  Barrier(std::shared_ptr<Peers> peers, const GroupSegment& segment, std::string group,
          std::chrono::milliseconds timeout, std::function<void()> watch);

  // Whether ranks outnumber cores. All ranks get the same answer.
  bool is_crowded() const { return crowded_; }

  // Blocks until all ranks have entered this operation. Fill next_entry() before.
  void enter(const Collective& collective);

  std::optional<int> last_to_enter() const { return last_to_enter_; }

  // Blocks until all ranks have reached the same step of the operation.
  void step(const Collective& collective);

  // This rank's entry for the next enter(), and a rank's for the last.
  RankBlock::Entry& next_entry() const { return segment_.block(rank_).entry[(entries_ + 1) & 1]; }
  const RankBlock::Entry& entry(int rank) const { return segment_.block(rank).entry[entries_ & 1]; }

  // Sleeps for at most `time`, until this rank's doorbell differs from `seen`.
  void await_doorbell(std::uint32_t seen, std::chrono::nanoseconds time);
  void ring(int rank) const;
  std::uint32_t doorbell() const { return segment_.block(rank_).doorbell.value.load(); }

  // `by_this_rank`: false for an abort by a rank of another host. The first reason counts.
  void abort(const AbortReason& why, bool by_this_rank = true) const;

  // Ranks that wait for this one throw from now on.
  void leave() const;
  bool has_left(int rank) const { return segment_.block(rank).left.load() != 0; }

  // Ranks that wait in this barrier throw timeout within 20 ms and name the absent ranks.
  void report_absent() const { segment_.common().is_awaited_in_vain.store(1); }

  // Very cheap.
  bool is_aborted() const { return segment_.common().abort_state.load() == 2; }

  // Logs, once per stop, which of `absent` are stopped; `context` begins the message.
  void report_stalled(const std::vector<int>& absent, const std::string& context);

  // Throws if a rank was lost or the group aborted; `context` begins the message. With several
  // hosts, waits up to 0.2 s for the reason of a rank that ended, unless killed.
  void throw_if_over(const std::string& context) const;
  void throw_if_over(const Collective& collective) const { throw_if_over(context(collective)); }

 private:
  template <class FlagOf>
  std::optional<int> await_all(FlagOf flag_of, std::uint32_t target, const Collective& collective,
                               bool in_call);
  template <class Absent>
  void await_asleep(Flag& flag, std::uint32_t target, const Collective& collective, Absent absent);
  void raise(Flag& flag, std::uint32_t value) const;
  std::string describe(const std::vector<int>& absent) const;
  std::optional<AbortReason> abort_reason(std::chrono::milliseconds limit = {}) const;
  bool is_missed_elsewhere(const std::vector<int>& absent) const;
  template <class Absent>
  void throw_if_they_left(Absent absent, const std::string& context) const;
  void throw_if_waited_in_vain(const std::vector<int>& absent, const std::string& context) const;
  [[noreturn]] void throw_timeout(const std::vector<int>& absent, const std::string& context,
                                  Clock::time_point since) const;
  std::string context(const Collective& collective) const;

  const std::shared_ptr<Peers> peers_;
  const GroupSegment& segment_;
  const std::string group_;
  const int rank_;
  const int size_;
  CoreSharing shares_core_;
  CoreSharing shares_core_in_messages_;
  std::function<void()> watch_;  // Until all ranks have made their Barrier.
  bool crowded_ = true;          // Until it is known.
  int spins_ = 0;
  std::uint32_t entries_ = 0;
  std::uint32_t steps_ = 0;
  std::uint32_t rounds_ = 0;
  std::optional<int> last_to_enter_;
  std::optional<Deadline> deadline_;  // Current operation's; empty until this rank sleeps.
  Clock::duration overslept_{0};      // Time in which this process was stopped.
  std::vector<bool> named_stalled_;
};

}  // namespace lockstep::comm
