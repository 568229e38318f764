// Throws the Error for a damaged file, and quotes text from files.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::datasets {

// Throws Fault::corrupt, such as "train.idx: byte 3: expected 1 to 8 dimensions, found 9".
[[noreturn]] inline void throw_corrupt(
    std::string_view file, std::uint64_t offset, std::string_view expected, std::string_view found,
    std::source_location where = std::source_location::current()) {
  std::string message(file);
  message += ": byte " + std::to_string(offset) + ": expected ";
  message.append(expected).append(", found ").append(found);
  throw Error(Fault::corrupt, message, where);
}

// `text` in quotes, without control characters, cut to `most` bytes.
inline std::string in_quotes(std::string_view text, std::size_t most = std::string_view::npos) {
  std::string result("'");
  result += clean_text(text, most);
  result += '\'';
  return result;
}

}  // namespace lockstep::datasets
