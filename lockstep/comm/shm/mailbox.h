// Messages between two ranks of a group that share memory.
//
// For each pair of ranks and each direction there is a channel, made at the first send: a ring of
// bytes into which the sender writes and from which the receiver reads. A send is complete once
// the ring has taken all of it. A message for which nobody has asked stays in the ring, unless the
// receiver waits for a later one: then it is kept aside.
//
// Thread safety: one thread at a time, but for await(), which any may call at any time.
// Errors: a message that does not fit its receive is an Error(mismatch) of that receive; progress()
// throws corrupt for a ring that holds no message of ours.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/message.h"
#include "lockstep/comm/shm/channel.h"
#include "lockstep/comm/shm/group_segment.h"
#include "lockstep/comm/shm/meeting.h"
#include "lockstep/comm/shm/peers.h"

namespace lockstep {

class Mailbox {
 public:
  // All must outlive the mailbox.
  Mailbox(std::shared_ptr<Peers> peers, const GroupSegment& segment, const Meeting& meeting,
          const std::string& group, const std::string& key);

  void post(std::shared_ptr<Message> message);
  void progress();
  void drop();
  void await(std::uint32_t seen);
  std::size_t pending() const;

 private:
  struct Outgoing {
    std::optional<Channel> channel = {};
    std::list<std::shared_ptr<Message>> queue = {};
    std::size_t written = 0;  // Of the front message, in bytes; its header comes first.
    bool counted = false;     // As sent: once, however often a full ring takes nothing of it.
    bool header_written = false;
  };
  // A message that came before it was asked for.
  struct Kept {
    MessageHeader header;
    std::vector<std::byte> bytes;
  };
  struct Incoming {
    bool requested = false;  // The channel, which was offered.
    std::optional<Channel> channel = {};
    std::optional<MessageHeader> header = {};  // Of the message that is coming in.
    std::shared_ptr<Message> receive = {};     // Into which it goes; null when it is kept.
    std::size_t read = 0;
    std::list<Kept> kept = {};  // The last one is still coming in when header && !receive.
  };

  void throw_if_over() const;
  bool push(int to, Outgoing& outgoing);
  bool pull(int from, Incoming& incoming);
  void open(int from, Incoming& incoming);
  bool begin_message(int from, Incoming& incoming);
  bool deliver_kept(int from, Incoming& incoming);
  std::shared_ptr<Message> take_receive(int from, std::int64_t tag);
  bool is_awaited(int from) const;
  bool fits(int from, const MessageHeader& header, Message& receive) const;
  void complete(int from, const MessageHeader& header, const Incoming& incoming,
                Message& receive) const;
  std::string key(int from, int to) const;

  const std::shared_ptr<Peers> peers_;
  const GroupSegment& segment_;
  const Meeting& meeting_;
  const std::string& group_;
  const std::string& key_;
  const int rank_;
  // By peer. Few are ever used, so an idle one must be small: lists, as an empty deque takes 576 bytes.
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::deque<std::shared_ptr<Message>> receives_;  // Posted and not matched, in order.
  int first_ = 0;  // From which progress() starts to pull, so that no rank is favoured.
  std::atomic<int> opening_{0};          // Channels that were requested and have not come.
  std::atomic<std::int64_t> looked_{0};  // When await() last looked for lost peers, of the clock.
};

}  // namespace lockstep
