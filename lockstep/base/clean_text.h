// Text from elsewhere, made fit for a terminal and for a line of a log.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

constexpr std::size_t longest_character = 4;  // Bytes, in UTF-8.

// The beginning of `text`, which does not end within a character of UTF-8.
LOCKSTEP_API std::string_view cut_text(std::string_view text, std::size_t most);

// `text` as UTF-8 without control characters, cut to `most` bytes between two characters. An ASCII
// control, such as a newline or ESC, becomes a space, a C1 control an inverted question mark, and
// a byte that is no UTF-8 the replacement character. Clean text stays as it is.
LOCKSTEP_API std::string clean_text(std::string_view text,
                                    std::size_t most = std::string_view::npos);

}  // namespace lockstep
