// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/tcp/group_channels.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/tcp/frames.h"

namespace lockstep::comm {
namespace {

using Kind = Frame::Kind;

// Per rank and group. A correct rank is ahead by one collective and the credit of its streams.
constexpr std::size_t max_unheard_bytes = std::size_t{16} << 20;
constexpr std::size_t entry_cost = 64;

constexpr std::size_t max_unopened = 1024;

}  // namespace

GroupChannels::Inbox::Inbox(const std::shared_ptr<Connection>& its_connection, std::uint64_t group)
    : connection(its_connection), out(its_connection, group), in(its_connection, group) {}

GroupChannels::GroupChannels(std::uint64_t id, std::function<void()> request_notify)
    : id_(id), request_notify_(std::move(request_notify)) {}

void GroupChannels::open(const std::string& name, const std::vector<int>& world_ranks,
                         const std::vector<std::shared_ptr<Connection>>& connections) {
  const std::lock_guard lock(mutex_);
  require(name_.empty(), [&] {
    return name_ == name ? fmt::format("group {} was opened before", name)
                         : fmt::format(
                               "the names of groups {} and {} have the same hash: name one of them "
                               "otherwise",
                               name_, name);
  });
  name_ = name;
  by_rank_.assign(world_ranks.size(), nullptr);
  for (std::size_t rank = 0; rank < world_ranks.size(); ++rank)
    if (connections[rank]) by_rank_[rank] = &inbox_of(world_ranks[rank], connections[rank]);
}

void GroupChannels::close() {
  {
    const std::lock_guard notifying(notify_mutex_);
    on_abort_ = nullptr;
    on_question_ = nullptr;
    on_message_ = nullptr;
  }
  const std::lock_guard lock(mutex_);
  closed_ = true;
  by_rank_.clear();
  inboxes_.clear();
}

void GroupChannels::fail(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    failed_ = error;
    if (!abort_reason_)
      abort_reason_ = AbortReason{.fault = error.fault(), .reason = bare_text(error)};
  }
  heard_.notify_all();
  notify(false);
}

void GroupChannels::take(int world_rank, const std::shared_ptr<Connection>& connection,
                         const Frame& frame) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    Inbox& inbox = inbox_of(world_rank, connection);
    switch (frame.kind) {
      case Kind::entry:
        return take_entry(inbox, frame);
      case Kind::received:
        return inbox.out.was_received(frame.number);
      case Kind::read:
        inbox.out.was_read(frame.number);
        break;
      case Kind::data:
        inbox.in.arrive(frame.number, frame.bytes);
        break;
      case Kind::abort:
        if (AbortReason why = decode_abort_reason(frame); !abort_reason_)
          abort_reason_ = std::move(why);
        break;
      case Kind::absent:
        asked_ = true;
        break;
      case Kind::left:
        inbox.left = true;
        heard_.notify_all();
        break;
      default:
        throw Error(Fault::corrupt, "a frame without a group");
    }
  }
  notify(frame.kind != Kind::abort && frame.kind != Kind::absent);
}

void GroupChannels::take_entry(Inbox& inbox, const Frame& frame) {
  inbox.unheard += frame.bytes.size() + entry_cost;
  if (inbox.unheard > max_unheard_bytes)
    throw Error(Fault::corrupt, "it sent more entries than a rank can be ahead");
  inbox.begun.append(frame.bytes);
  if (frame.number != 0) return;
  inbox.entries.push_back(std::exchange(inbox.begun, {}));
  heard_.notify_all();
}

void GroupChannels::notify(bool of_messages) {
  const std::lock_guard notifying(notify_mutex_);
  if (of_messages && on_message_) on_message_();
  std::optional<AbortReason> abort_reason;
  bool asked = false;
  {
    const std::lock_guard lock(mutex_);
    asked = std::exchange(asked_, asked_ && !on_question_);
    if (!reported_abort_ && on_abort_) abort_reason = abort_reason_;
    if (abort_reason)
      abort_reason->ranks = ranks_within(abort_reason->ranks, static_cast<int>(by_rank_.size()));
  }
  if (asked && on_question_) on_question_();
  if (!abort_reason) return;
  reported_abort_ = true;
  on_abort_(*abort_reason);
}

void GroupChannels::say(int peer, std::string_view entry) {
  if (aborted_) return;
  Connection& connection = *inbox(peer).connection;
  do {
    const std::string_view part = entry.substr(0, max_frame_bytes);
    entry.remove_prefix(part.size());
    connection.send(
        {.kind = Kind::entry, .group = id_, .number = entry.empty() ? 0U : 1U, .bytes = part});
  } while (!entry.empty());
}

std::optional<std::string> GroupChannels::hear(int peer, Deadline deadline,
                                               const std::function<void()>& watch) {
  Inbox& from = inbox(peer);
  Clock::duration overslept{0};  // Time in which this process was stopped.
  int fair_slices = 0;           // Since then.
  std::unique_lock lock(mutex_);
  for (auto before = Clock::now();;) {
    const Deadline end = deadline == no_deadline ? deadline : deadline + overslept;
    const Deadline wake = before < end ? std::min(in(wait_slice), end) : in(wait_slice);
    heard_.wait_until(lock, wake, [&] { return !from.entries.empty() || from.left || failed_; });
    if (!from.entries.empty()) {
      std::string entry = std::move(from.entries.front());
      from.entries.pop_front();
      const std::size_t frames =
          std::max<std::size_t>(1, (entry.size() + max_frame_bytes - 1) / max_frame_bytes);
      from.unheard -= entry.size() + frames * entry_cost;
      return entry;
    }
    if (failed_) throw *failed_;
    if (from.left) return std::nullopt;
    const auto now = Clock::now();
    const bool fair = now - before < unfair_slice;
    if (!fair) overslept += now - before;
    fair_slices = fair ? fair_slices + 1 : 0;
    before = now;
    lock.unlock();
    watch();
    lock.lock();
    if (now >= end && fair_slices >= enough_slices) return std::nullopt;
  }
}

void GroupChannels::leave() {
  if (aborted_) return;  // They have the reason already.
  const std::lock_guard lock(mutex_);
  for (const Inbox* inbox : by_rank_)
    if (inbox != nullptr) inbox->connection->send({.kind = Kind::left, .group = id_});
}

bool GroupChannels::has_left(int peer) const { return inbox(peer).left; }

void GroupChannels::abort(const AbortReason& why) {
  if (aborted_.exchange(true)) return;
  const std::string bytes = encode_abort_reason(why);
  const std::lock_guard lock(mutex_);
  for (const Inbox* inbox : by_rank_)
    if (inbox != nullptr)
      inbox->connection->send({.kind = Kind::abort,
                               .group = id_,
                               .number = static_cast<std::uint64_t>(why.fault),
                               .bytes = bytes});
}

void GroupChannels::ask_who_is_absent(const std::vector<int>& peers) {
  for (const int peer : peers) inbox(peer).connection->send({.kind = Kind::absent, .group = id_});
}

void GroupChannels::on_abort(std::function<void(const AbortReason&)> act) {
  {
    const std::lock_guard notifying(notify_mutex_);
    on_abort_ = std::move(act);
  }
  request_notify_();
  const bool failed = [this] {
    const std::lock_guard lock(mutex_);
    return failed_.has_value();
  }();
  if (failed) notify(false);  // The thread no longer does it.
}

void GroupChannels::on_question(std::function<void()> act) {
  {
    const std::lock_guard notifying(notify_mutex_);
    on_question_ = std::move(act);
  }
  request_notify_();
}

void GroupChannels::on_message(std::function<void()> act) {
  {
    const std::lock_guard notifying(notify_mutex_);
    on_message_ = std::move(act);
  }
  request_notify_();
}

PipeWriter& GroupChannels::to(int peer) { return inbox(peer).out; }

PipeReader* GroupChannels::from(int peer) {
  InStream& stream = inbox(peer).in;
  return stream.has_begun() ? &stream : nullptr;
}

GroupChannels::Inbox& GroupChannels::inbox_of(int world_rank,
                                              const std::shared_ptr<Connection>& connection) {
  auto& inbox = inboxes_[world_rank];
  if (!inbox) inbox = std::make_unique<Inbox>(connection, id_);
  return *inbox;
}

GroupChannels::Inbox& GroupChannels::inbox(int peer) const {
  const auto index = static_cast<std::size_t>(peer);
  check(index < by_rank_.size() && by_rank_[index] != nullptr,
        "there is no connection to that rank");
  return *by_rank_[index];
}

std::shared_ptr<GroupChannels> ChannelTable::open(
    const std::string& name, const std::vector<int>& world_ranks,
    const std::vector<std::shared_ptr<Connection>>& connections) {
  const std::lock_guard lock(mutex_);
  if (failed_) throw *failed_;
  const std::uint64_t id = group_id(name);
  require(groups_.contains(id) || !was_opened(id), [&] {
    return fmt::format("group {}, or one of the same hash, was opened before", name);
  });
  const bool came_before = groups_.contains(id) && !was_opened(id);
  auto opened = group(id);
  opened->open(name, world_ranks, connections);
  ever_opened_.insert(std::upper_bound(ever_opened_.begin(), ever_opened_.end(), id), id);
  if (came_before) --unopened_;
  return opened;
}

void ChannelTable::close(GroupChannels& group) {
  group.close();
  const std::lock_guard lock(mutex_);
  groups_.erase(group.id());
}

std::shared_ptr<GroupChannels> ChannelTable::receiver(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  if (!groups_.contains(id)) {
    if (was_opened(id)) return nullptr;
    if (++unopened_ > max_unopened) throw Error(Fault::corrupt, "it named too many unknown groups");
  }
  return group(id);
}

void ChannelTable::notify_all_soon() {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, group] : groups_) to_notify_.push_back(id);
}

bool ChannelTable::has_to_notify() const {
  const std::lock_guard lock(mutex_);
  return !to_notify_.empty();
}

void ChannelTable::notify() {
  std::vector<std::shared_ptr<GroupChannels>> groups;
  {
    const std::lock_guard lock(mutex_);
    for (const std::uint64_t id : to_notify_)
      if (const auto found = groups_.find(id); found != groups_.end())
        groups.push_back(found->second);
    to_notify_.clear();
  }
  for (const auto& group : groups) group->notify(true);
}

void ChannelTable::fail(const Error& error) {
  std::vector<std::shared_ptr<GroupChannels>> groups;
  {
    const std::lock_guard lock(mutex_);
    failed_ = error;
    for (const auto& [id, group] : groups_) groups.push_back(group);
  }
  for (const auto& group : groups) group->fail(error);
}

std::shared_ptr<GroupChannels> ChannelTable::group(std::uint64_t id) {
  auto& group = groups_[id];
  if (group) return group;
  group = std::make_shared<GroupChannels>(id, [this, id] {
    {
      const std::lock_guard lock(mutex_);
      to_notify_.push_back(id);
    }
    wake_();
  });
  return group;
}

bool ChannelTable::was_opened(std::uint64_t id) const {
  return std::binary_search(ever_opened_.begin(), ever_opened_.end(), id);
}

}  // namespace lockstep::comm
