// A ring of bytes from one rank to another, and the header of each message in it.
//
// Thread safety: one thread writes and one reads.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/comm/dtype.h"
#include "lockstep/comm/shm/peers.h"

namespace lockstep {

// Before each message's elements. Both ends are of one build on one host.
struct MessageHeader {
  std::uint32_t magic = 0x4c534d31;
  DType dtype = DType::float32;
  std::uint8_t reserved[3] = {};
  std::int64_t tag = 0;
  std::uint64_t count = 0;  // Elements.
};

// Errors: corrupt for what no sender of ours writes.
MessageHeader parse_message_header(std::span<const std::byte, sizeof(MessageHeader)> bytes);

class Channel {
 public:
  static std::size_t bytes();

  explicit Channel(SharedMemory memory);

  // As much as there is room for; how many bytes that was.
  std::size_t write(const std::byte* data, std::size_t bytes);

  // As much as is there.
  std::size_t read(std::byte* data, std::size_t bytes);
  std::size_t readable() const;

  // Messages that were begun, and that were given to a receive.
  void count_sent() const;
  void count_received() const;
  std::size_t pending() const;

 private:
  struct Ring;
  Ring& ring() const;

  SharedMemory memory_;
};

}  // namespace lockstep
