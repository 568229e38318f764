// The header before each message's elements, in shared memory and between hosts.
//
// 24 bytes, little-endian: magic u32, type u8, three zeros, tag i64, count of elements u64.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/comm/core/dtype.h"

namespace lockstep {

struct MessageHeader {
  std::uint32_t magic = 0x4c534d31;
  DType dtype = DType::float32;
  std::uint8_t reserved[3] = {};
  std::int64_t tag = 0;
  std::uint64_t count = 0;  // Elements.

  std::size_t bytes() const { return count * size_of(dtype); }  // Size of the elements.
};

// The struct has this layout.
static_assert(std::endian::native == std::endian::little && sizeof(MessageHeader) == 24);

using MessageHeaderBytes = std::array<std::byte, sizeof(MessageHeader)>;

inline MessageHeaderBytes to_bytes(const MessageHeader& header) {
  return std::bit_cast<MessageHeaderBytes>(header);
}

// Errors: corrupt for bytes that are no such header.
MessageHeader parse_message_header(std::span<const std::byte, sizeof(MessageHeader)> bytes);

}  // namespace lockstep
