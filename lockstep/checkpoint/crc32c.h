// CRC-32C (Castagnoli; RFC 3720, appendix B.4), which processors compute at the speed of memory.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

// Of the bytes whose CRC is `crc`, followed by `bytes`.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc = 0);

}  // namespace lockstep
