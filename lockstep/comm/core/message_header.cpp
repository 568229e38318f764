// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/core/message_header.h"

#include <fmt/format.h>

#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep {

MessageHeader parse_message_header(std::span<const std::byte, sizeof(MessageHeader)> bytes) {
  MessageHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  const bool sane = header.magic == MessageHeader{}.magic && size_of(header.dtype) != 0 &&
                    header.tag >= 0 && header.count < std::uint64_t{1} << 48;
  if (!sane)
    throw Error(
        Fault::corrupt,
        fmt::format("a message's header is not one of ours (magic {:08x}, type {}, tag {}, "
                    "{} elements)",
                    header.magic, static_cast<int>(header.dtype), header.tag, header.count));
  return header;
}

}  // namespace lockstep
