// Messages between the ranks of a group, over its pipes.
//
// A send is complete once the pipe has taken all of it. A message for which nobody has asked stays
// in the pipe, unless the receiver waits for a later one: then it is kept aside.
//
// Thread safety: one thread at a time, but for await(), which any may call at any time.
// Errors: a message that does not fit its receive is an Error(mismatch) of that receive; progress()
// throws corrupt for a pipe that holds no message of ours.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/core/message.h"
#include "lockstep/comm/core/message_header.h"
#include "lockstep/comm/core/pipe.h"

namespace lockstep {

class Mailbox {
 public:
  // `pipes` must outlive the mailbox; `group` is for messages.
  Mailbox(Pipes& pipes, std::string group);

  void post(std::shared_ptr<Message> message);
  void progress();
  void drop();
  void await(std::uint32_t seen) { pipes_.await(seen); }
  std::size_t pending() const;

 private:
  struct Outgoing {
    Pipe* pipe = nullptr;  // From the first message on.
    std::list<std::shared_ptr<Message>> queue = {};
    std::size_t written = 0;  // Of the front message, in bytes; its header comes first.
    bool counted = false;     // As sent: once, however often a full pipe takes nothing of it.
    bool header_written = false;
  };
  // A message that came before it was asked for.
  struct Kept {
    MessageHeader header;
    std::vector<std::byte> bytes;
  };
  struct Incoming {
    Pipe* pipe = nullptr;                      // Once that rank has sent something.
    std::optional<MessageHeader> header = {};  // Of the message that is coming in.
    std::shared_ptr<Message> receive = {};     // Into which it goes; null when it is kept.
    std::size_t read = 0;
    std::list<Kept> kept = {};  // The last one is still coming in when header && !receive.
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

  Pipes& pipes_;
  const std::string group_;
  const int rank_;
  // By peer. Few are ever used, so an idle one must be small: lists, as an empty deque takes 576
  // bytes.
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::deque<std::shared_ptr<Message>> receives_;  // Posted and not matched, in order.
  int first_ = 0;  // From which progress() starts to pull, so that no rank is favoured.
};

}  // namespace lockstep
