// The highest ratio of deflate, the compression of gzip and PNG, to check claimed sizes.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace lockstep::data {

// Decompressed bytes per compressed byte, at most. RFC 1951: a match of 258 bytes costs at least
// two bits.
inline constexpr std::int64_t most_bytes_for_one = 1032;

}  // namespace lockstep::data
