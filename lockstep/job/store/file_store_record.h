// One change in a FileStore's file. Frozen: docs/protocol.md.
//
// Errors: corrupt for bytes that encode() never returns.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

struct FileStoreRecord {
  enum class Kind : std::uint32_t { set = 1, erase = 2 };

  Kind kind = Kind::set;
  std::string_view key = {};
  std::string_view value = {};  // Empty for erase.
};

constexpr std::string_view file_store_magic{"LOCKSTEP STORE\x01\n", 16};
constexpr std::size_t record_header_bytes = 40;

std::string encode(const FileStoreRecord& record);

// Returns the number of bytes of key and value after these record_header_bytes. The header has its
// own check, so a damaged length is found before any allocation.
std::size_t body_bytes(std::string_view header);

FileStoreRecord decode_record(std::string_view header, std::string_view body);

}  // namespace lockstep
