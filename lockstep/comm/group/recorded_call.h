// One collective in the timeline of all ranks (job/timeline_recorder.h), if there is one.
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
#include "lockstep/job/activity.h"
#include "lockstep/job/step_clock.h"
#include "lockstep/job/timeline_recorder.h"

namespace lockstep::comm {

// The larger of the bytes read and written on this rank.
inline std::uint64_t bytes_of(const Collective& collective) {
  return std::max(collective.input.bytes(), collective.output.bytes());
}

class RecordedCall {
 public:
  explicit RecordedCall(Ticks begin)
      : recorder_(TimelineRecorder::current()), begin_(begin), waited_until_(begin) {}

  // All ranks have entered. `last`: the last one, as job rank, if this rank waited for it.
  void end_wait(std::optional<int> last) {
    if (recorder_ == nullptr || !last) return;
    last_ = *last;
    waited_until_ = ticks_now();
  }

  void end(const GroupName& group, const Collective& collective, Ticks now) const {
    record(group, collective, now, std::nullopt);
  }

  // Call it in the handler of the exception that ends the collective.
  void fail(const GroupName& group, const Collective& collective, Ticks now) const {
    record(group, collective, now, fault_in(std::current_exception()).value_or(Fault::aborted));
  }

 private:
  void record(const GroupName& group, const Collective& collective, Ticks now,
              std::optional<Fault> fault) const {
    if (recorder_ == nullptr) return;
    recorder_->collective({.group = group,
                           .operation = collective.signature.operation,
                           .sequence = collective.sequence,
                           .bytes = bytes_of(collective),
                           .begin = begin_,
                           .waited_until = waited_until_,
                           .end = now,
                           .last = last_,
                           .fault = fault,
                           .is_of_loop = StepClock::of_this_thread() != nullptr});
  }

  TimelineRecorder* const recorder_;
  const Ticks begin_;
  Ticks waited_until_;
  int last_ = -1;
};

}  // namespace lockstep::comm
