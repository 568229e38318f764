// Messages between the ranks of a group: their format in pipes, and their matching.
//
// A send is complete once the pipe has taken it. A message without a matching receive stays in the
// pipe, or in memory if the receiver waits for a later one.
//
// Thread safety: one thread at a time.
// Errors: a receive fails with mismatch if its message does not fit. A message from or to a rank
// that has left fails with peer_lost if it cannot complete. progress() throws corrupt when a pipe's
// bytes are not a message. Before it fails a message of a rank that has left, it calls
// Pipes::throw_if_over().

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/core/pipe.h"

namespace lockstep::comm {

// Precedes each message's elements, also between hosts. Frozen.
struct MessageHeader {
  std::uint32_t magic = 0x4c534d31;
  DType dtype = DType::float32;
  std::uint8_t reserved[3] = {};
  std::int64_t tag = 0;
  std::uint64_t count = 0;  // Elements.

  std::size_t bytes() const { return count * size_of(dtype); }
};

static_assert(std::endian::native == std::endian::little && sizeof(MessageHeader) == 24);

using MessageHeaderBytes = std::array<std::byte, sizeof(MessageHeader)>;

inline MessageHeaderBytes to_bytes(const MessageHeader& header) {
  return std::bit_cast<MessageHeaderBytes>(header);
}

// Errors: corrupt for bytes that are not such a header.
MessageHeader parse_message_header(std::span<const std::byte, sizeof(MessageHeader)> bytes);

class Mailbox {
 public:
  // `pipes` must outlive the mailbox; error messages contain `group`.
  Mailbox(Pipes& pipes, std::string group);

  // Starts to send or receive `message`, which must not change until complete; see its `error`.
  // Throws if its pipe cannot be made, and as Pipes::throw_if_over() after an abort.
  void post(std::shared_ptr<Message> message);

  // Moves all posted messages as far as possible without waiting.
  void progress();

  // Drops all posted messages; their buffers are no longer accessed.
  void drop();

  // Messages from or to this rank that were not received, also those still to be sent.
  std::size_t pending() const;

 private:
  struct Outgoing {
    PipeWriter* pipe = nullptr;  // Set by the first message; null once the receiver has left.
    std::list<std::shared_ptr<Message>> queue = {};
    std::size_t written = 0;  // Bytes of the header, then of the elements.
    bool counted = false;
    bool header_written = false;
  };
  // Arrived before its receive.
  struct Kept {
    MessageHeader header;
    std::vector<std::byte> bytes;
  };
  struct Incoming {
    PipeReader* pipe = nullptr;  // Set once that rank has sent something.
    std::optional<MessageHeader> header = {};
    std::shared_ptr<Message> receive = {};  // Null when the message is kept.
    std::size_t read = 0;
    std::list<Kept> kept = {};  // The last one is incomplete when header && !receive.
  };

  bool push(int to, Outgoing& outgoing);
  bool pull(int from, Incoming& incoming);
  bool begin_message(int from, Incoming& incoming);
  bool deliver_kept(int from, Incoming& incoming);
  std::shared_ptr<Message> take_receive(int from, std::int64_t tag);
  bool is_awaited(int from) const;
  bool fits(int from, const MessageHeader& header, Message& receive) const;
  void complete(int from, const MessageHeader& header, const Incoming& incoming,
                Message& receive) const;
  bool fail_what_the_left_miss();
  bool fail_messages_with(int peer);
  bool fail_receives_from_anybody();
  // `progress` follows the description of each message.
  bool fail(std::span<const std::shared_ptr<Message>> messages, const std::vector<int>& left,
            std::string_view progress = {}) const;

  Pipes& pipes_;
  const std::string group_;
  const int rank_;
  const int size_;
  // By peer. Most stay idle and must be small: an empty deque takes 576 bytes.
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::deque<std::shared_ptr<Message>> receives_;  // Posted and unmatched, in order.
  int first_ = 0;  // The next progress() receives from this peer first, so that none is favoured.
};

}  // namespace lockstep::comm
