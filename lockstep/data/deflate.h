// The limit of deflate, the packing of gzip and PNG, for sizes that a file claims.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace lockstep::data {

// Unpacked bytes of one packed byte. RFC 1951: a match of 258 bytes costs at least two bits.
inline constexpr std::int64_t most_bytes_for_one = 1032;

}  // namespace lockstep::data
