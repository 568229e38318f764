// CRC-32C (Castagnoli; RFC 3720, appendix B.4).

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/base/api.h"

namespace lockstep {

// Extends `crc`, that of the preceding bytes.
LOCKSTEP_API std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc = 0);

}  // namespace lockstep
