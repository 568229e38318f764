// The messages of one group on this rank, and their record.
//
// Thread safety: any thread.
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
#include "lockstep/comm/group/group_context.h"
#include "lockstep/comm/group/rank_context.h"
#include "lockstep/comm/point_to_point.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/work.h"
#include "lockstep/job/activity.h"

namespace lockstep::comm {

class GroupMessages {
 public:
  // `group` must outlive it.
  explicit GroupMessages(GroupContext& group);

  Source run(const std::shared_ptr<Message>& message, const CallOptions& options);

  // As run(), in the background. `owner` keeps this object alive; a message may outlive both.
  Work start(const std::shared_ptr<Message>& message, const CallOptions& options,
             std::weak_ptr<const void> owner);

  // Messages sent to or from this rank but not received. Call it before close().
  std::size_t pending() const { return messages_->pending(); }

  // Makes all messages fail with `error`. False after close().
  bool end(const std::exception_ptr& error);

  // Calls end() and releases the backend.
  void close(const std::exception_ptr& error);

 private:
  enum class Call { blocking, asynchronous };

  struct Begun {
    std::shared_ptr<PointToPoint> messages;
    std::uint64_t number;  // In the record.
  };

  // Publishes the message. Errors: misuse after the group's end; the Error that broke it.
  Begun begin_call(const Message& message, Call call);
  void note_end(std::uint64_t number, const Message& message, std::exception_ptr error,
                std::chrono::milliseconds timeout);

  GroupContext& group_;
  const GroupName packed_name_;
  mutable std::mutex mutex_;  // Guards the rest, and what the group's record of messages gets.
  std::shared_ptr<PointToPoint> messages_;
  std::shared_ptr<RankContext> rank_context_;  // Null after close(), like messages_.
  std::uint64_t begun_ = 0;
};

}  // namespace lockstep::comm
