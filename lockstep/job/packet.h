// The packets between a switchboard and its ranks: of one fixed size, and at most one
// descriptor beside it. Both ends are of the same build on the same host, so it is plain memory.

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
    offer,   // rank -> board: a descriptor for `key`, to be taken by `readers`; else `text`.
    want,    // rank -> board: give me `key` when it is there.
    given,   // board -> rank: here it is.
    refused  // board -> rank: whoever should offer it could not, for the reason in `text`.
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

// Never blocks: not_now when the peer has too much to read already.
Sent send_packet(int socket, const Packet& packet, int fd = -1);

// Never blocks. Anything that is not one whole packet of ours counts as closed.
Received receive_packet(int socket, Packet& packet, FileDescriptor& fd);

}  // namespace lockstep
