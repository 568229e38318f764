// The frames between a TcpStore and its server after the handshake, and the records in a
// FileStore's file. Frozen: docs/protocol.md.
//
// No I/O and no state. Decoding returns views and allocates nothing, so a peer's length costs no
// memory.
// Errors: corrupt for bytes that encoding never produces.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/job/store/store.h"

namespace lockstep::job {

struct StoreRequest {
  enum class Kind : std::uint8_t {
    set = 1,          // key, value
    find = 2,         // key
    wait = 3,         // key; the reply follows when it exists
    cancel = 4,       // ends the wait with this id; no reply to either
    add = 5,          // key, amount
    compare_set = 6,  // key, expected, value
    erase = 7,        // key
  };

  Kind kind = Kind::set;
  std::uint64_t id = 0;  // Chosen by the client, repeated in the reply.
  std::string_view key = {};
  std::string_view value = {};
  std::string_view expected = {};
  std::int64_t amount = 0;
};

struct StoreReply {
  enum class Kind : std::uint8_t {
    done = 1,
    absent = 2,  // find: no such key; erase: no such key
    value = 3,   // bytes
    number = 4,  // number
    error = 5,   // fault; reason in bytes
  };

  Kind kind = Kind::done;
  std::uint64_t id = 0;
  std::string_view bytes = {};
  std::int64_t number = 0;
  Fault fault = Fault::bug;
};

constexpr std::size_t frame_header_bytes = 4;
constexpr std::size_t max_frame_bytes = 64 + Store::max_key_bytes + 2 * Store::max_value_bytes;
constexpr std::size_t max_reason_bytes = 1024;

// Complete frames, with their length. An error's bytes are cut to max_reason_bytes.
std::string encode(const StoreRequest& request);
std::string encode(const StoreReply& reply);

// A reply's frame. Frames with the same long value share it.
struct StoreFrame {
  std::string bytes;
  std::shared_ptr<const std::string> value = nullptr;  // Follows `bytes`.

  std::size_t size() const { return bytes.size() + (value ? value->size() : 0); }
  std::string text() const { return value ? bytes + *value : bytes; }
};

// A reply of kind value.
StoreFrame frame_of(std::uint64_t id, const std::shared_ptr<const std::string>& value);

// Without its length; empty when more bytes are needed.
std::optional<std::string_view> first_frame(std::string_view bytes);

StoreRequest decode_request(std::string_view body);
StoreReply decode_reply(std::string_view body);

struct FileStoreRecord {
  enum class Kind : std::uint32_t { set = 1, erase = 2 };

  Kind kind = Kind::set;
  std::string_view key = {};
  std::string_view value = {};
};

constexpr std::string_view file_store_magic{"LOCKSTEP STORE\x01\n", 16};
constexpr std::size_t record_header_bytes = 40;

std::string encode(const FileStoreRecord& record);

// Bytes of key and value after the header, whose own checksum detects a damaged length before any
// allocation.
std::size_t body_bytes(std::string_view header);

FileStoreRecord decode_record(std::string_view header, std::string_view body);

}  // namespace lockstep::job
