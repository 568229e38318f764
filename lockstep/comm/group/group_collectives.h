// Numbers, compares, runs and records the collectives of one group on this rank.
//
// Thread safety: one thread at a time, which holds the turn; any thread may read record().
// Errors: every Error of a collective breaks the group.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/group/flight_recorder.h"
#include "lockstep/comm/group/group_failure.h"
#include "lockstep/comm/group/group_identity.h"
#include "lockstep/comm/group/group_life.h"
#include "lockstep/comm/group/met_break.h"
#include "lockstep/comm/group/recorded_call.h"
#include "lockstep/comm/group/timed_call.h"
#include "lockstep/job/activity.h"

namespace lockstep::comm {

class GroupCollectives {
 public:
  // All arguments must outlive it.
  GroupCollectives(const GroupIdentity& group, const GroupLife& life, GroupFailure& failure);

  // Completes `collective`, and sets its sequence.
  void execute(Collective& collective);

  // Enters `collective`, checks that all ranks' calls are equal, then calls act(collective). Sets
  // its sequence.
  template <class Act>
  void perform(Collective& collective, Act act) {
    failure_.throw_if_broken();
    Activity& activity = life_.activity();
    note_going_on(activity);
    const Ticks begin = ticks_now();
    const TimedCall timed(begin);
    RecordedCall span(begin);
    collective.sequence = ++sequence_;
    activity.collective.enter(packed_name_, collective.signature.operation, collective.sequence,
                              begin);
    const std::uint64_t recorded = record_.enter(collective.signature, collective.sequence, begin);
    try {
      life_.backend().enter(collective);
      const auto last = last_to_enter();
      timed.end_wait(last);
      span.end_wait(last);
      throw_unless_all_agree(collective);
      act(collective);
    } catch (...) {
      const Ticks end = ticks_now();
      record_.leave(recorded, FlightRecorder::Phase::failed, end);
      activity.collective.leave(end);
      span.fail(packed_name_, collective, end);
      failure_.break_with(std::current_exception(), group_.describe(collective),
                          collective.timeout);
      throw;
    }
    if (reduces(collective.signature.operation)) life_.count_reduced_bytes(bytes_of(collective));
    const Ticks end = ticks_now();
    record_.leave(recorded, FlightRecorder::Phase::completed, end);
    activity.collective.leave(end);
    span.end(packed_name_, collective, end);
  }

  // Within the performed `outer`: gathers every rank's words in rank order.
  void all_gather_words(const Collective& outer, std::span<const std::int64_t> mine,
                        std::vector<std::int64_t>& all);

  const FlightRecorder& record() const { return record_; }

 private:
  // As a rank of the job.
  std::optional<int> last_to_enter() const {
    const auto last = life_.backend().last_to_enter();
    return last ? std::optional(group_.world_rank(*last)) : std::nullopt;
  }

  void throw_unless_all_agree(const Collective& collective) const;
  [[noreturn]] void throw_mismatch(const Collective& collective) const;
  std::vector<std::string> labels_of(const std::vector<Signature>& calls,
                                     const Collective& collective) const;
  void complete(const Collective& collective);
  void run_native(const Collective& collective);
  void all_to_all_of_uneven_parts(const Collective& collective);

  const GroupIdentity& group_;
  const GroupName packed_name_;
  const GroupLife& life_;
  GroupFailure& failure_;
  std::uint64_t sequence_ = 0;
  FlightRecorder record_;
};

}  // namespace lockstep::comm
