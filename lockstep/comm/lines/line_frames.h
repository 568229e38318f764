// What ranks of different hosts say on a line. Frozen: docs/protocol.md. No I/O here.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep {

// Every frame has all fields; what a kind does not name is zero and empty.
struct LineFrame {
  enum class Kind : std::uint8_t {
    rank = 1,      // number: the sender's. The first frame, and only that.
    finished = 2,  // The sender's job has ended in order.
    failure = 3,   // bytes: encode_failure().
    entry = 4,     // group; number: 1 when more of the entry follows; bytes.
    give_up = 5,   // group; number: the Fault; bytes: the reason.
    data = 6,      // group; number: messages begun so far; bytes of the stream.
    read = 7,      // group; number: bytes of the stream read so far.
    received = 8,  // group; number: messages given to a receive so far.
  };

  Kind kind = Kind::rank;
  std::uint64_t group = 0;  // See group_id().
  std::uint64_t number = 0;
  std::string_view bytes = {};
};

constexpr std::size_t line_head_bytes = 21;
constexpr std::size_t max_line_frame_bytes = std::size_t{64} << 10;  // Of LineFrame::bytes.

// All of a frame but its bytes, which come behind. Those must not be too many.
std::string encode_head(const LineFrame& frame);

// The first frame of `input`, whose bytes are a part of it, and how much of `input` it took. Empty
// when not all of it is there. Errors: corrupt for what no sender of ours writes.
struct ParsedFrame {
  LineFrame frame;
  std::size_t size = 0;
};
std::optional<ParsedFrame> parse_line_frame(std::string_view input);

// Texts are cut to what fits into a frame, and are clean once they are decoded: see clean_text().
// Errors: corrupt.
std::string encode_failure(const Failure& failure);
Failure decode_failure(std::string_view bytes);

// A hash instead of the name, so that a small frame is small however deep the group. Two names of
// one hash are found when both are opened: see Lines::open().
std::uint64_t group_id(std::string_view name);

}  // namespace lockstep
