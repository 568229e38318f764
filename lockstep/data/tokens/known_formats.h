// File formats that are not tokens alone, recognised by their first bytes: read as tokens, their
// headers would be trained on.
//
// Torch-free, so that it can be fuzzed.

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

// `bytes` is the whole file. Nothing for a file of tokens alone. A text counts as tokens if these
// have one byte each.
std::optional<KnownFormat> known_format_of(std::span<const std::byte> bytes,
                                           std::size_t bytes_of_token);

}  // namespace lockstep::data
