// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace lockstep {
namespace {

constexpr std::size_t most_at_once = std::size_t{1} << 30;  // ISA-L counts in an int.

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc) {
  std::uint32_t state = ~crc;
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), most_at_once));
    // ISA-L takes a mutable pointer, but does not write.
    auto* data = const_cast<std::byte*>(part.data());
    state =
        ::crc32_iscsi(reinterpret_cast<unsigned char*>(data), static_cast<int>(part.size()), state);
    bytes = bytes.subspan(part.size());
  }
  return ~state;
}

}  // namespace lockstep
