// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/tcp/frames.h"

#include <algorithm>

#include "lockstep/base/bytes.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/core/signature.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t length_bytes = 4;
constexpr std::size_t max_text_bytes = std::size_t{4} << 10;
constexpr std::size_t max_what_bytes = std::size_t{16} << 10;

enum FailureFlag : std::uint8_t {
  has_exit_code = 1,
  has_signal = 2,
  has_oom = 4,
  is_oom = 8,
  has_left = 16,
  has_peer = 32,
  all_flags = 63,
};

using Kind = Frame::Kind;

[[noreturn]] void throw_corrupt(const char* what) { throw Error(Fault::corrupt, what); }

bool belongs_to_group(Frame::Kind kind) { return kind >= Frame::Kind::entry; }

void check_fields(const Frame& frame) {
  if (frame.kind < Kind::rank || frame.kind > Kind::left) throw_corrupt("a frame of unknown kind");
  if (!belongs_to_group(frame.kind) && frame.group != 0)
    throw_corrupt("a frame names a group, but its kind has no group");
  const bool has_number = frame.kind != Kind::finished && frame.kind != Kind::failure &&
                          frame.kind != Kind::absent && frame.kind != Kind::left;
  if (!has_number && frame.number != 0)
    throw_corrupt("a frame has a number, but its kind has none");
  if (frame.kind == Kind::entry && frame.number > 1) throw_corrupt("an entry is malformed");
  if (frame.kind == Kind::abort && frame.number > static_cast<std::uint64_t>(Fault::bug))
    throw_corrupt("an unknown fault");
  const bool has_bytes = frame.kind == Kind::failure || frame.kind == Kind::entry ||
                         frame.kind == Kind::abort || frame.kind == Kind::data;
  if (!has_bytes && !frame.bytes.empty()) throw_corrupt("a frame has bytes, but its kind has none");
}

void write_ranks(ByteWriter& writer, const std::vector<int>& ranks) {
  const std::size_t count = std::min(ranks.size(), most_blamed);
  writer.number(static_cast<std::uint32_t>(count));
  for (std::size_t i = 0; i < count; ++i) writer.number(static_cast<std::uint32_t>(ranks[i]));
}

int read_integer(ByteReader& reader) { return static_cast<int>(reader.number<std::uint32_t>()); }

std::vector<int> read_ranks(ByteReader& reader) {
  const auto count = reader.number<std::uint32_t>();
  if (count > most_blamed) throw_corrupt("too many ranks are blamed");
  std::vector<int> ranks;
  for (std::uint32_t i = 0; i < count; ++i) ranks.push_back(read_integer(reader));
  if (std::any_of(ranks.begin(), ranks.end(), [](int rank) { return rank < 0; }))
    throw_corrupt("a blamed rank has an impossible number");
  return ranks;
}

std::string read_text(ByteReader& reader, std::size_t most) {
  return clean_text(reader.prefixed(most), most);
}

std::string_view cut(std::string_view text, std::size_t most) { return text.substr(0, most); }

// 0 for none, otherwise one more than the Fault's number.
std::uint8_t number_of(const std::optional<Fault>& fault) {
  return fault ? static_cast<std::uint8_t>(static_cast<int>(*fault) + 1) : std::uint8_t{0};
}

std::optional<Fault> fault_of_the_living(std::uint8_t number) {
  for (const Fault fault : {Fault::timeout, Fault::mismatch})
    if (number == number_of(fault)) return fault;
  if (number != 0) throw_corrupt("living ranks are blamed for a fault that is not theirs");
  return std::nullopt;
}

}  // namespace

std::string encode_head(const Frame& frame) {
  check(frame.bytes.size() <= max_frame_bytes, "a frame is too long");
  const std::size_t length = frame_head_bytes - length_bytes + frame.bytes.size();
  return ByteWriter(frame_head_bytes)
      .number(static_cast<std::uint32_t>(length))
      .number(static_cast<std::uint8_t>(frame.kind))
      .number(frame.group)
      .number(frame.number)
      .take();
}

std::optional<ParsedFrame> parse_frame(std::string_view input) {
  if (input.size() < length_bytes) return std::nullopt;
  const std::size_t length = ByteReader(input).number<std::uint32_t>();
  if (length < frame_head_bytes - length_bytes ||
      length + length_bytes - frame_head_bytes > max_frame_bytes)
    throw_corrupt("a frame has an impossible length");
  if (input.size() < length_bytes + length) return std::nullopt;
  ByteReader reader(input.substr(length_bytes, length));
  Frame frame;
  frame.kind = static_cast<Frame::Kind>(reader.number<std::uint8_t>());
  frame.group = reader.number<std::uint64_t>();
  frame.number = reader.number<std::uint64_t>();
  frame.bytes = reader.raw(length_bytes + length - frame_head_bytes);
  check_fields(frame);
  return ParsedFrame{frame, length_bytes + length};
}

std::string encode_failure(const Failure& failure) {
  int flags = 0;
  if (failure.exit_code) flags |= has_exit_code;
  if (failure.signal) flags |= has_signal;
  if (failure.oom) flags |= has_oom;
  if (failure.oom.value_or(false)) flags |= is_oom;
  if (failure.left) flags |= has_left;
  if (failure.peer) flags |= has_peer;
  ByteWriter writer(256);
  writer.number(static_cast<std::uint32_t>(failure.rank))
      .number(static_cast<std::uint32_t>(failure.pid))
      .number(static_cast<std::uint32_t>(failure.detected_by))
      .number(failure.sequence)
      .number(static_cast<std::uint8_t>(flags))
      .number(static_cast<std::uint32_t>(failure.exit_code.value_or(0)))
      .number(static_cast<std::uint32_t>(failure.signal.value_or(0)))
      .number(static_cast<std::uint32_t>(failure.peer.value_or(0)))
      .prefixed(cut(failure.host, max_text_bytes))
      .prefixed(cut(failure.operation, max_text_bytes))
      .prefixed(cut(failure.group, max_text_bytes))
      .prefixed(cut(failure.what, max_what_bytes))
      .prefixed(cut(failure.connection, max_text_bytes))
      .number(number_of(failure.fault))
      .prefixed(cut(failure.call, max_text_bytes));
  write_ranks(writer, failure.ranks);
  return writer.take();
}

Failure decode_failure(std::string_view bytes) {
  ByteReader reader(bytes);
  Failure failure;
  failure.rank = read_integer(reader);
  failure.pid = read_integer(reader);
  failure.detected_by = read_integer(reader);
  failure.sequence = reader.number<std::uint64_t>();
  const auto flags = reader.number<std::uint8_t>();
  if (flags > all_flags || (flags & (has_oom | is_oom)) == is_oom)
    throw_corrupt("a failure has unknown flags");
  const int exit_code = read_integer(reader);
  const int signal = read_integer(reader);
  const int peer = read_integer(reader);
  if ((flags & has_exit_code) != 0) failure.exit_code = exit_code;
  if ((flags & has_signal) != 0) failure.signal = signal;
  if ((flags & has_oom) != 0) failure.oom = (flags & is_oom) != 0;
  failure.left = (flags & has_left) != 0;
  if ((flags & has_peer) != 0) failure.peer = std::max(peer, -1);
  failure.host = read_text(reader, max_text_bytes);
  failure.operation = read_text(reader, max_text_bytes);
  failure.group = read_text(reader, max_text_bytes);
  failure.what = read_text(reader, max_what_bytes);
  failure.connection = read_text(reader, max_text_bytes);
  failure.fault = fault_of_the_living(reader.number<std::uint8_t>());
  failure.call = read_text(reader, max_text_bytes);
  failure.ranks = read_ranks(reader);
  reader.end();
  return failure;
}

std::string encode_abort_reason(const AbortReason& why) {
  const auto more = static_cast<int>(why.ranks.size() - std::min(why.ranks.size(), most_blamed));
  ByteWriter writer(256);
  writer.number(static_cast<std::uint32_t>(why.rank))
      .number(static_cast<std::uint32_t>(why.more + more))
      .prefixed(cut(why.call, max_text_bytes))
      .prefixed(cut(why.reason, max_what_bytes));
  write_ranks(writer, why.ranks);
  return writer.take();
}

AbortReason decode_abort_reason(const Frame& frame) {
  ByteReader reader(frame.bytes);
  AbortReason why{.fault = static_cast<Fault>(frame.number)};
  why.rank = read_integer(reader);
  why.more = std::max(0, read_integer(reader));
  why.call = read_text(reader, max_text_bytes);
  why.reason = read_text(reader, max_what_bytes);
  why.ranks = read_ranks(reader);
  reader.end();
  return why;
}

std::uint64_t group_id(std::string_view name) { return hash_of(name.data(), name.size()); }

}  // namespace lockstep::comm
