// Recognises files that are not raw tokens by their first bytes. Read as raw tokens, their headers
// would become training data.
//
// Does not depend on LibTorch, so that it can be fuzzed.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

namespace lockstep::data {

struct KnownFormat {
  std::string_view name;    // "a .npy array of NumPy".
  std::string_view remedy;  // "leave TokenFileOptions::raw unset".
};

// `bytes` is the contents of the whole file. Returns nothing for a file of raw tokens. Text counts
// as tokens if a token has one byte.
std::optional<KnownFormat> known_format_of(std::span<const std::byte> bytes,
                                           std::size_t bytes_of_token);

}  // namespace lockstep::data
