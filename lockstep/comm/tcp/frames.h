// Frames between ranks on different hosts. Frozen: docs/protocol.md; other frames need another
// Channel.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/comm/core/abort_reason.h"

namespace lockstep::comm {

// Fields that a frame's kind does not list are zero or empty.
struct Frame {
  enum class Kind : std::uint8_t {
    rank = 1,      // number: the sender's rank. Always the first frame, and only that.
    finished = 2,  // The sender's job has ended in order.
    failure = 3,   // bytes: encode_failure().
    entry = 4,     // group; number: 1 when more of the entry follows; bytes.
    abort = 5,     // group; number: the Fault; bytes: encode_abort_reason().
    data = 6,      // group; number: messages begun so far; bytes of the stream.
    read = 7,      // group; number: bytes of the stream read so far.
    received = 8,  // group; number: messages given to a receive so far.
    absent = 9,    // group. Asks which ranks of the host are absent.
    left = 10,     // group. The sender makes no more calls of it.
  };

  Kind kind = Kind::rank;
  std::uint64_t group = 0;  // See group_id().
  std::uint64_t number = 0;
  std::string_view bytes = {};
};

constexpr std::size_t frame_head_bytes = 21;
constexpr std::size_t max_frame_bytes = std::size_t{64} << 10;  // Limit of Frame::bytes.

// Without the frame's bytes, which follow it: at most max_frame_bytes.
std::string encode_head(const Frame& frame);

// Views `input`. Empty when the first frame is incomplete. Errors: corrupt.
struct ParsedFrame {
  Frame frame;
  std::size_t size = 0;
};
std::optional<ParsedFrame> parse_frame(std::string_view input);

// Texts are cut to fit a frame, and cleaned by decoding. A failure has at most `most_blamed` ranks,
// none negative. Errors: corrupt.
std::string encode_failure(const Failure& failure);
Failure decode_failure(std::string_view bytes);
std::string encode_abort_reason(const AbortReason& why);  // All but the fault.
AbortReason decode_abort_reason(const Frame& frame);

// A hash, which keeps frames small for nested groups. Connections::open() detects two names with
// one hash.
std::uint64_t group_id(std::string_view name);

}  // namespace lockstep::comm
