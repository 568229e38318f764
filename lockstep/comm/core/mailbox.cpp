// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/core/mailbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::comm {

MessageHeader parse_message_header(std::span<const std::byte, sizeof(MessageHeader)> bytes) {
  MessageHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  const bool sane = header.magic == MessageHeader{}.magic && size_of(header.dtype) != 0 &&
                    header.tag >= 0 && header.count < std::uint64_t{1} << 48;
  if (!sane)
    throw Error(
        Fault::corrupt,
        fmt::format("a message's header is not one of ours (magic {:08x}, type {}, tag {}, "
                    "{} elements)",
                    header.magic, static_cast<int>(header.dtype), header.tag, header.count));
  return header;
}

namespace {

void finish(Message& message) { message.complete.store(true, std::memory_order_release); }

}  // namespace

Mailbox::Mailbox(Pipes& pipes, std::string group)
    : pipes_(pipes),
      group_(std::move(group)),
      rank_(pipes.rank()),
      size_(pipes.size()),
      outgoing_(static_cast<std::size_t>(size_)),
      incoming_(static_cast<std::size_t>(size_)) {}

void Mailbox::post(std::shared_ptr<Message> message) {
  if (pipes_.is_aborted())
    pipes_.throw_if_over(fmt::format("send and recv in group {} on rank {}", group_, rank_));
  if (message->operation == Operation::recv) {
    receives_.push_back(std::move(message));
    return;
  }
  const int to = message->peer;
  Outgoing& outgoing = outgoing_[static_cast<std::size_t>(to)];
  if (!outgoing.pipe && !pipes_.has_left(to)) outgoing.pipe = &pipes_.to(to);
  outgoing.queue.push_back(std::move(message));
}

void Mailbox::progress() {
  bool completed = false;
  for (int to = 0; to < size_; ++to) completed |= push(to, outgoing_[static_cast<std::size_t>(to)]);
  for (int i = 0; i < size_; ++i) {
    const int from = (first_ + i) % size_;
    completed |= pull(from, incoming_[static_cast<std::size_t>(from)]);
  }
  first_ = (first_ + 1) % size_;
  if (completed) pipes_.ring(rank_);
  if (fail_what_the_left_miss()) pipes_.ring(rank_);
}

void Mailbox::drop() {
  receives_.clear();
  for (Outgoing& outgoing : outgoing_) outgoing.queue.clear();
  for (Incoming& incoming : incoming_) {
    incoming.receive = nullptr;
    incoming.header.reset();
    incoming.kept.clear();
  }
}

bool Mailbox::push(int to, Outgoing& outgoing) {
  bool completed = false;
  bool moved = false;
  while (outgoing.pipe != nullptr && !outgoing.queue.empty()) {
    Message& message = *outgoing.queue.front();
    if (!outgoing.header_written) {
      if (!outgoing.counted) outgoing.pipe->count_sent();
      outgoing.counted = true;
      const MessageHeader header{
          .dtype = message.buffer.dtype, .tag = message.tag, .count = message.buffer.count};
      const MessageHeaderBytes bytes = to_bytes(header);
      const std::size_t more =
          outgoing.pipe->write(bytes.data() + outgoing.written, bytes.size() - outgoing.written);
      outgoing.written += more;
      moved |= more > 0;
      if (outgoing.written < bytes.size()) break;
      outgoing.header_written = true;
      outgoing.written = 0;
    }
    const std::size_t all = message.buffer.bytes();
    const auto* data = static_cast<const std::byte*>(message.buffer.data);
    const std::size_t more = outgoing.pipe->write(data + outgoing.written, all - outgoing.written);
    outgoing.written += more;
    moved |= more > 0;
    if (outgoing.written < all) break;
    outgoing.written = 0;
    outgoing.counted = false;
    outgoing.header_written = false;
    const auto sent = std::move(outgoing.queue.front());
    outgoing.queue.pop_front();
    finish(*sent);
    completed = true;
  }
  if (moved) pipes_.ring(to);
  return completed;
}

bool Mailbox::pull(int from, Incoming& incoming) {
  bool completed = deliver_kept(from, incoming);
  if (!incoming.pipe) incoming.pipe = pipes_.from(from);
  if (!incoming.pipe) return completed;
  bool moved = false;
  while (incoming.header || begin_message(from, incoming)) {
    std::byte* to = nullptr;
    const std::size_t all = incoming.header->bytes();
    if (incoming.receive) {
      to = static_cast<std::byte*>(incoming.receive->buffer.data) + incoming.read;
    } else {
      // Grows with the received bytes, not with the size in the header.
      auto& kept = incoming.kept.back().bytes;
      kept.resize(incoming.read + std::min(all - incoming.read, incoming.pipe->readable()));
      to = kept.data() + incoming.read;
    }
    const std::size_t limit = incoming.receive ? all : incoming.kept.back().bytes.size();
    const std::size_t more = incoming.pipe->read(to, limit - incoming.read);
    incoming.read += more;
    moved |= more > 0;
    if (incoming.read < all) break;
    if (incoming.receive) complete(from, *incoming.header, incoming, *incoming.receive);
    completed |= incoming.receive != nullptr;
    incoming.receive = nullptr;
    incoming.header.reset();
    incoming.read = 0;
    completed |= deliver_kept(from, incoming);
  }
  if (moved) pipes_.ring(from);
  return completed;
}

// Only if its header has arrived and a receive waits for this or a later message.
bool Mailbox::begin_message(int from, Incoming& incoming) {
  if (!is_awaited(from) || incoming.pipe->readable() < sizeof(MessageHeader)) return false;
  MessageHeaderBytes bytes;
  incoming.pipe->read(bytes.data(), bytes.size());
  const MessageHeader header = parse_message_header(bytes);
  incoming.header = header;
  incoming.receive = take_receive(from, header.tag);
  if (incoming.receive && !fits(from, header, *incoming.receive)) {
    finish(*incoming.receive);
    incoming.receive = nullptr;  // The message is kept, so that later ones can be read.
  }
  if (!incoming.receive) incoming.kept.push_back({header, {}});
  return true;
}

bool Mailbox::is_awaited(int from) const {
  return std::any_of(receives_.begin(), receives_.end(), [&](const auto& receive) {
    return receive->peer == from || receive->peer == any_source;
  });
}

std::shared_ptr<Message> Mailbox::take_receive(int from, std::int64_t tag) {
  const auto found = std::find_if(receives_.begin(), receives_.end(), [&](const auto& receive) {
    return (receive->peer == from || receive->peer == any_source) &&
           (receive->tag == tag || receive->tag == any_tag);
  });
  if (found == receives_.end()) return nullptr;
  auto receive = *found;
  receives_.erase(found);
  return receive;
}

bool Mailbox::fits(int from, const MessageHeader& header, Message& receive) const {
  const Buffer& buffer = receive.buffer;
  if (header.dtype == buffer.dtype && header.count == buffer.count) return true;
  receive.error = std::make_exception_ptr(
      Error(Fault::mismatch,
            fmt::format("recv in group {}: rank {} sent {} {} with tag {}, rank {} receives {} {}",
                        group_, from, header.count, name(header.dtype), header.tag, rank_,
                        buffer.count, name(buffer.dtype))));
  return false;
}

bool Mailbox::deliver_kept(int from, Incoming& incoming) {
  bool completed = false;
  const bool last_is_whole = !incoming.header || incoming.receive;
  for (auto kept = incoming.kept.begin(); kept != incoming.kept.end();) {
    if (!last_is_whole && std::next(kept) == incoming.kept.end()) break;
    const auto receive = take_receive(from, kept->header.tag);
    if (!receive) {
      ++kept;
      continue;
    }
    if (fits(from, kept->header, *receive)) {
      if (!kept->bytes.empty())
        std::memcpy(receive->buffer.data, kept->bytes.data(), kept->bytes.size());
      complete(from, kept->header, incoming, *receive);
    } else {
      finish(*receive);
    }
    kept = incoming.kept.erase(kept);
    completed = true;
  }
  return completed;
}

void Mailbox::complete(int from, const MessageHeader& header, const Incoming& incoming,
                       Message& receive) const {
  receive.peer = from;
  receive.tag = header.tag;
  incoming.pipe->count_received();
  finish(receive);
}

bool Mailbox::fail_what_the_left_miss() {
  bool failed = false;
  int left = 0;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || !pipes_.has_left(peer)) continue;
    ++left;
    failed |= fail_messages_with(peer);
  }
  if (left > 0 && left == size_ - 1) failed |= fail_receives_from_anybody();
  return failed;
}

// First reads what the rank sent before it left.
bool Mailbox::fail_messages_with(int peer) {
  Incoming& incoming = incoming_[static_cast<std::size_t>(peer)];
  bool ended = pull(peer, incoming);
  if (incoming.pipe == nullptr && pipes_.is_opening(peer)) return ended;
  if (incoming.header) {  // The rest of this message never comes.
    const auto receive = std::exchange(incoming.receive, nullptr);
    if (receive)
      ended |= fail(
          {&receive, 1}, {peer},
          fmt::format(": only {} of {} bytes have come", incoming.read, incoming.header->bytes()));
    else
      incoming.kept.pop_back();
    incoming.header.reset();
    incoming.read = 0;
  }
  std::vector<std::shared_ptr<Message>> missed;
  Outgoing outgoing = std::exchange(outgoing_[static_cast<std::size_t>(peer)], {});
  if (outgoing.pipe != nullptr) pipes_.release(peer);
  std::ranges::move(outgoing.queue, std::back_inserter(missed));
  const auto theirs = std::ranges::stable_partition(
      receives_, [&](const auto& receive) { return receive->peer != peer; });
  std::ranges::move(theirs, std::back_inserter(missed));
  receives_.erase(theirs.begin(), theirs.end());
  return fail(missed, {peer}) || ended;
}

bool Mailbox::fail_receives_from_anybody() {
  std::vector<int> others;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) others.push_back(peer);
    if (pipes_.is_opening(peer)) return false;
  }
  std::vector<std::shared_ptr<Message>> missed;
  std::ranges::move(std::exchange(receives_, {}), std::back_inserter(missed));
  return fail(missed, others);
}

// If a loss made `left` leave, this rank knows of it by now.
bool Mailbox::fail(std::span<const std::shared_ptr<Message>> messages, const std::vector<int>& left,
                   std::string_view progress) const {
  if (messages.empty()) return false;
  pipes_.throw_if_over(describe_message(*messages[0], group_, rank_));
  const auto why = pipes_.why_left(left.front());
  for (const auto& message : messages) {
    std::string context = describe_message(*message, group_, rank_);
    context += progress;
    message->error = std::make_exception_ptr(error_of_the_left(context, left, group_, why));
    message->peer_left = true;
    finish(*message);
  }
  return true;
}

std::size_t Mailbox::pending() const {
  std::size_t count = 0;
  for (const auto& outgoing : outgoing_)
    if (outgoing.pipe) count += outgoing.pipe->pending() + outgoing.queue.size();
  for (const auto& incoming : incoming_)
    if (incoming.pipe) count += incoming.pipe->pending();
  return count;
}

}  // namespace lockstep::comm
