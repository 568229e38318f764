// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group_messages.h"

#include <optional>
#include <utility>

#include "lockstep/base/time.h"
#include "lockstep/comm/group/timed_call.h"
#include "lockstep/job/activity.h"

namespace lockstep::comm {

GroupMessages::GroupMessages(GroupContext& group)
    : group_(group),
      packed_name_(pack_group_name(group.identity().name)),
      messages_(std::make_shared<PointToPoint>(group.resources().backend, group.identity().name)),
      rank_context_(group.resources().rank_context) {}

Source GroupMessages::run(const std::shared_ptr<Message>& message, const CallOptions& options) {
  const auto timeout = group_.identity().timeout_of(options.timeout);
  const auto [messages, number] = begin_call(*message, Call::blocking);
  const TimedCall timed(ticks_now());
  try {
    messages->run(message, in(timeout));
    timed.end_wait(message->operation == Operation::recv
                       ? std::optional(group_.identity().world_rank(message->peer))
                       : std::nullopt);
  } catch (...) {
    RankContext::note_failed_call();
    note_end(number, *message, std::current_exception(), timeout);
    throw;
  }
  note_end(number, *message, nullptr, timeout);
  return {message->peer, message->tag};
}

Work GroupMessages::start(const std::shared_ptr<Message>& message, const CallOptions& options,
                          std::weak_ptr<const void> owner) {
  const auto timeout = group_.identity().timeout_of(options.timeout);
  const auto [messages, number] = begin_call(*message, Call::asynchronous);
  try {
    return messages->start(message, in(timeout),
                           [this, number = number, message, timeout, owner = std::move(owner),
                            kept = options.keep_alive](std::exception_ptr error) {
                             // The group may have been destroyed with `kept`.
                             if (const auto strong = owner.lock())
                               note_end(number, *message, error, timeout);
                           });
  } catch (...) {
    note_end(number, *message, std::current_exception(), timeout);
    throw;
  }
}

GroupMessages::Begun GroupMessages::begin_call(const Message& message, Call call) {
  group_.identity().require_own_process();
  const Signature signature{.count = message.buffer.count,
                            .label = static_cast<std::uint64_t>(message.tag),
                            .root = message.peer,
                            .operation = message.operation,
                            .dtype = message.buffer.dtype};
  const Ticks now = ticks_now();
  const std::lock_guard lock(mutex_);
  group_.require_usable();
  group_.throw_if_broken();
  ++begun_;
  if (rank_context_) {
    Activity& activity = rank_context_->activity();
    rank_context_->note_call();
    activity.peer.store(message.peer, std::memory_order_relaxed);
    activity.message.enter(packed_name_, message.operation, begun_, now);
    if (call == Call::asynchronous) activity.message.leave(now);
  }
  return {messages_, group_.messages().enter(signature, begun_, now)};
}

void GroupMessages::note_end(std::uint64_t number, const Message& message, std::exception_ptr error,
                             std::chrono::milliseconds timeout) {
  {
    const Ticks now = ticks_now();
    const std::lock_guard lock(mutex_);
    using Phase = FlightRecorder::Phase;
    group_.messages().leave(number, error ? Phase::failed : Phase::completed, now);
    const bool is_latest = number + 1 == begun_;
    if (rank_context_ && is_latest) rank_context_->activity().message.leave(now);
  }
  if (!error || group_.is_over()) return;
  if (message.peer_left)
    group_.report(error, group_.identity().describe(message));
  else
    group_.break_with(error, group_.identity().describe(message), timeout);
}

bool GroupMessages::end(const std::exception_ptr& error) {
  std::unique_lock lock(mutex_);
  const auto messages = messages_;
  lock.unlock();
  if (messages) messages->end(error);
  return messages != nullptr;
}

// The thread of messages ends outside the lock.
void GroupMessages::close(const std::exception_ptr& error) {
  end(error);
  std::shared_ptr<PointToPoint> messages;
  const std::lock_guard lock(mutex_);
  messages.swap(messages_);
  rank_context_.reset();
}

}  // namespace lockstep::comm
