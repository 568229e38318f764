// The messages of one group on this rank, and their record.
//
// Thread safety: any thread may call any member.
// Errors: misuse after the group's end. Every Error of a message breaks the group, unless its peer
// has left.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/group/flight_recorder.h"
#include "lockstep/comm/group/group_failure.h"
#include "lockstep/comm/group/group_identity.h"
#include "lockstep/comm/group/group_life.h"
#include "lockstep/comm/group/rank_in_job.h"
#include "lockstep/comm/point_to_point.h"
#include "lockstep/comm/work.h"
#include "lockstep/job/activity.h"

namespace lockstep::comm {

class GroupMessages {
 public:
  // The referenced objects must outlive this one.
  GroupMessages(const GroupIdentity& group, const GroupLife& life, GroupFailure& failure,
                std::shared_ptr<Backend> backend);

  Source run(const std::shared_ptr<Message>& message, std::chrono::milliseconds timeout);

  // As run(), in the background; releases `keep_alive` at the end. `owner` keeps this object alive;
  // a message may outlive both.
  Work start(const std::shared_ptr<Message>& message, std::chrono::milliseconds timeout,
             std::shared_ptr<const void> keep_alive, std::weak_ptr<const void> owner);

  // Number of messages sent to or from this rank but not received. Call it before close().
  std::size_t pending() const { return messages_->pending(); }

  // Makes all messages fail with `error`. False after close().
  bool end(const std::exception_ptr& error);

  // Calls end() and releases the backend.
  void close(const std::exception_ptr& error);

  const FlightRecorder& record() const { return record_; }

 private:
  std::shared_ptr<PointToPoint> usable() const;
  enum class Call { blocking, asynchronous };

  // Publishes the message; returns its number in the record.
  std::uint64_t note_begin(const Message& message, Call call);
  void note_end(std::uint64_t number, const Message& message, std::exception_ptr error,
                std::chrono::milliseconds timeout);

  const GroupIdentity& group_;
  const GroupName packed_name_;
  const GroupLife& life_;
  GroupFailure& failure_;
  mutable std::mutex mutex_;  // Guards the rest.
  std::shared_ptr<PointToPoint> messages_;
  std::shared_ptr<RankInJob> in_job_;  // Null after close(), like messages_.
  std::uint64_t begun_ = 0;
  FlightRecorder record_;
};

}  // namespace lockstep::comm
