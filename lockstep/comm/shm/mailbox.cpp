// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/mailbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lockstep/comm/error.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds slice{20};
constexpr std::chrono::microseconds while_opening{200};  // What was offered comes soon.

std::size_t bytes_of(const MessageHeader& header) { return header.count * size_of(header.dtype); }

void finish(Message& message) { message.complete.store(true, std::memory_order_release); }

}  // namespace

Mailbox::Mailbox(std::shared_ptr<Peers> peers, const GroupSegment& segment, const Meeting& meeting,
                 const std::string& group, const std::string& key)
    : peers_(std::move(peers)),
      segment_(segment),
      meeting_(meeting),
      group_(group),
      key_(key),
      rank_(peers_->rank()),
      outgoing_(static_cast<std::size_t>(peers_->size())),
      incoming_(static_cast<std::size_t>(peers_->size())) {}

void Mailbox::post(std::shared_ptr<Message> message) {
  if (meeting_.is_given_up()) throw_if_over();
  if (message->operation == Operation::recv) {
    receives_.push_back(std::move(message));
    return;
  }
  const int to = message->peer;
  Outgoing& outgoing = outgoing_[static_cast<std::size_t>(to)];
  if (!outgoing.channel) {
    outgoing.channel.emplace(peers_->offer(key(rank_, to), Channel::bytes(), 1));
    segment_.lane(rank_).channels[to / 64].fetch_or(std::uint64_t{1} << (to % 64));
  }
  outgoing.queue.push_back(std::move(message));
}

void Mailbox::progress() {
  bool completed = false;
  const int size = peers_->size();
  for (int to = 0; to < size; ++to) completed |= push(to, outgoing_[static_cast<std::size_t>(to)]);
  for (int i = 0; i < size; ++i) {
    const int from = (first_ + i) % size;
    completed |= pull(from, incoming_[static_cast<std::size_t>(from)]);
  }
  first_ = (first_ + 1) % size;
  if (completed) meeting_.ring(rank_);  // Another thread may wait for what has become complete.
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
  while (!outgoing.queue.empty()) {
    Message& message = *outgoing.queue.front();
    if (!outgoing.header_written) {
      if (!outgoing.counted) outgoing.channel->count_sent();
      outgoing.counted = true;
      const MessageHeader header{
          .dtype = message.buffer.dtype, .tag = message.tag, .count = message.buffer.count};
      std::byte bytes[sizeof header];
      std::memcpy(bytes, &header, sizeof header);
      const std::size_t more =
          outgoing.channel->write(bytes + outgoing.written, sizeof header - outgoing.written);
      outgoing.written += more;
      moved |= more > 0;
      if (outgoing.written < sizeof header) break;
      outgoing.header_written = true;
      outgoing.written = 0;
    }
    const std::size_t all = message.buffer.bytes();
    const auto* data = static_cast<const std::byte*>(message.buffer.data);
    const std::size_t more =
        outgoing.channel->write(data + outgoing.written, all - outgoing.written);
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
  if (moved) meeting_.ring(to);
  return completed;
}

bool Mailbox::pull(int from, Incoming& incoming) {
  bool completed = deliver_kept(from, incoming);
  if (!incoming.channel) open(from, incoming);
  if (!incoming.channel) return completed;
  bool moved = false;
  while (incoming.header || begin_message(from, incoming)) {
    std::byte* to = nullptr;
    const std::size_t all = bytes_of(*incoming.header);
    if (incoming.receive) {
      to = static_cast<std::byte*>(incoming.receive->buffer.data) + incoming.read;
    } else {
      // Grows with what has come, not with what a header promises.
      auto& kept = incoming.kept.back().bytes;
      kept.resize(incoming.read + std::min(all - incoming.read, incoming.channel->readable()));
      to = kept.data() + incoming.read;
    }
    const std::size_t limit = incoming.receive ? all : incoming.kept.back().bytes.size();
    const std::size_t more = incoming.channel->read(to, limit - incoming.read);
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
  if (moved) meeting_.ring(from);
  return completed;
}

// Asks for a channel that was offered, and takes it once it has come.
void Mailbox::open(int from, Incoming& incoming) {
  const auto bit = std::uint64_t{1} << (rank_ % 64);
  if ((segment_.lane(from).channels[rank_ / 64].load() & bit) == 0) return;
  const std::string what = key(from, rank_);
  if (!incoming.requested) {
    peers_->request(what);
    incoming.requested = true;
    ++opening_;
  }
  if (SharedMemory memory = peers_->poll(what, Channel::bytes())) {
    incoming.channel.emplace(std::move(memory));
    --opening_;
  }
}

// Reads the next header if it is there and somebody waits for this or a later message.
bool Mailbox::begin_message(int from, Incoming& incoming) {
  if (!is_awaited(from) || incoming.channel->readable() < sizeof(MessageHeader)) return false;
  std::byte bytes[sizeof(MessageHeader)];
  incoming.channel->read(bytes, sizeof bytes);
  const MessageHeader header = parse_message_header(bytes);
  incoming.header = header;
  incoming.receive = take_receive(from, header.tag);
  if (incoming.receive && !fits(from, header, *incoming.receive)) {
    finish(*incoming.receive);
    incoming.receive = nullptr;  // It is kept, so that what follows it can be read.
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

// Gives what came earlier to receives that were posted later.
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
  incoming.channel->count_received();
  finish(receive);
}

void Mailbox::await(std::uint32_t seen) {
  meeting_.await_doorbell(seen, opening_ > 0 ? std::chrono::nanoseconds(while_opening) : slice);
  // By the clock: the bell may ring all the time, for messages of other ranks.
  const auto now = Clock::now().time_since_epoch().count();
  if (now - looked_ < std::chrono::nanoseconds(slice).count() && meeting_.doorbell() != seen)
    return;
  looked_ = now;
  throw_if_over();
}

void Mailbox::throw_if_over() const {
  meeting_.throw_if_over(fmt::format("send and recv in group {} on rank {}", group_, rank_));
}

std::size_t Mailbox::pending() const {
  std::size_t count = 0;
  for (const auto& outgoing : outgoing_)
    if (outgoing.channel) count += outgoing.channel->pending() + outgoing.queue.size();
  for (const auto& incoming : incoming_)
    if (incoming.channel) count += incoming.channel->pending();
  return count;
}

std::string Mailbox::key(int from, int to) const {
  return fmt::format("{} from {} to {}", key_, from, to);
}

}  // namespace lockstep
