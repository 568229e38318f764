// The packets between a switchboard and its ranks: fixed size, each with at most one descriptor.
// Both ends are of the same build on the same host, so a packet is a plain struct.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/file_descriptor.h"

namespace lockstep {

struct Packet {
  enum class Kind : std::uint32_t {
    hello,   // rank -> board: `text` is the job's identity.
    offer,   // rank -> board: a descriptor for `key`, for `readers` ranks; or `text`, a refusal.
    want,    // rank -> board: send me `key` when it is there.
    given,   // board -> rank: the descriptor.
    refused  // board -> rank: the offering rank refused, for the reason in `text`.
  };

  std::uint32_t magic = 0x4c530001;  // Changes with the layout.
  Kind kind = Kind::hello;
  std::int32_t readers = 0;
  char key[128] = {};
  char text[372] = {};
};

Packet make_packet(Packet::Kind kind, std::string_view key, std::string_view text = {});

enum class Received { packet, nothing_yet, closed };

enum class Sent { whole, not_now, closed };

// Never blocks: not_now when the peer has too much unread.
Sent send_packet(int socket, const Packet& packet, int fd = -1);

// Never blocks. Anything but one whole packet of this format counts as closed.
Received receive_packet(int socket, Packet& packet, FileDescriptor& fd);

}  // namespace lockstep
