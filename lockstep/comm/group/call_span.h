// Records one collective in this rank's Activity, the group's flight record, the times of the
// training loop and the timeline.
//
// Thread safety: one thread uses it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/group/flight_recorder.h"
#include "lockstep/comm/group/group_context.h"
#include "lockstep/comm/group/timed_call.h"
#include "lockstep/job/activity.h"
#include "lockstep/job/step_clock.h"
#include "lockstep/job/timeline_recorder.h"

namespace lockstep::comm {

// The larger of the bytes read and written on this rank.
inline std::uint64_t bytes_of(const Collective& collective) {
  return std::max(collective.input.bytes(), collective.output.bytes());
}

class CallSpan {
 public:
  // All arguments outlive it. `name`: the group's.
  CallSpan(GroupContext& group, const GroupName& name, const Collective& collective)
      : group_(group), name_(name), collective_(collective) {
    group.rank_context().note_call();
    activity_.enter(name, collective.signature.operation, collective.sequence, begin_);
    recorded_ = group.collectives().enter(collective.signature, collective.sequence, begin_);
  }
  CallSpan(const CallSpan&) = delete;
  CallSpan& operator=(const CallSpan&) = delete;

  // `last`: the last rank to enter, as rank of the job, if this rank has waited for it.
  void all_entered(std::optional<int> last) {
    timed_.end_wait(last);
    if (timeline_ == nullptr || !last) return;
    last_ = *last;
    waited_until_ = ticks_now();
  }

  void complete() const {
    if (reduces(collective_.signature.operation))
      group_.rank_context().count_reduced_bytes(bytes_of(collective_));
    end(FlightRecorder::Phase::completed, std::nullopt);
  }

  // Call it in the handler of the exception that ends the collective.
  void fail() const {
    end(FlightRecorder::Phase::failed, fault_in(std::current_exception()).value_or(Fault::aborted));
  }

 private:
  void end(FlightRecorder::Phase phase, std::optional<Fault> fault) const {
    const Ticks now = ticks_now();
    group_.collectives().leave(recorded_, phase, now);
    activity_.leave(now);
    if (timeline_ == nullptr) return;
    timeline_->collective({.group = name_,
                           .operation = collective_.signature.operation,
                           .sequence = collective_.sequence,
                           .bytes = bytes_of(collective_),
                           .begin = begin_,
                           .waited_until = waited_until_,
                           .end = now,
                           .last = last_,
                           .fault = fault,
                           .is_of_loop = StepClock::of_this_thread() != nullptr});
  }

  GroupContext& group_;
  const GroupName& name_;
  const Collective& collective_;
  const Ticks begin_ = ticks_now();
  const TimedCall timed_{begin_};
  ShownCall& activity_ = group_.rank_context().activity().collective;
  TimelineRecorder* const timeline_ = TimelineRecorder::current();
  std::uint64_t recorded_ = 0;  // The flight record's number of this call.
  Ticks waited_until_ = begin_;
  int last_ = -1;
};

}  // namespace lockstep::comm
