// Makes text from outside this process safe for a terminal and for one line of a log.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

constexpr std::size_t longest_character = 4;  // Bytes, in UTF-8.

// Returns the beginning of `text`, at most `most` bytes. It never ends within a UTF-8 character.
LOCKSTEP_API std::string_view cut_text(std::string_view text, std::size_t most);

// Returns `text` as UTF-8 without control characters, cut to `most` bytes between two characters.
// An ASCII control character, such as a newline or ESC, becomes a space. A C1 control character
// becomes an inverted question mark. A byte that is not UTF-8 becomes the replacement character.
// Clean text stays as it is.
LOCKSTEP_API std::string clean_text(std::string_view text,
                                    std::size_t most = std::string_view::npos);

}  // namespace lockstep
