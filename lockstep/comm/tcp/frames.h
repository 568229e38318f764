// Frames between ranks on different hosts. Frozen (docs/protocol.md): other frames need another
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

// docs/protocol.md defines which fields each kind has. Others are zero or empty.
struct Frame {
  enum class Kind : std::uint8_t {
    rank = 1,
    finished = 2,
    failure = 3,  // encode_failure().
    entry = 4,
    abort = 5,  // encode_abort_reason().
    data = 6,
    read = 7,
    received = 8,
    absent = 9,
    left = 10,
  };

  Kind kind = Kind::rank;
  std::uint64_t group = 0;  // See group_id().
  std::uint64_t number = 0;
  std::string_view bytes = {};
};

constexpr std::size_t frame_head_bytes = 21;
constexpr std::size_t max_frame_bytes = std::size_t{64} << 10;  // Limit of Frame::bytes.

// The frame's bytes, at most max_frame_bytes, follow.
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

// A hash keeps frames small for nested groups. Connections::open() detects collisions.
std::uint64_t group_id(std::string_view name);

}  // namespace lockstep::comm
