// The highest compression ratio of deflate (gzip, PNG), to check claimed sizes.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace lockstep::datasets {

// Decompressed bytes per compressed byte: a match of 258 bytes takes at least two bits (RFC 1951).
inline constexpr std::int64_t most_bytes_for_one = 1032;

}  // namespace lockstep::datasets
