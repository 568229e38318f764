// Copies text into arrays of fixed size, for structs that processes share.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep {

// Cuts `from` to fit, and always ends it with a zero byte.
template <std::size_t n>
void copy_text(char (&to)[n], std::string_view from) {
  to[from.copy(to, n - 1)] = '\0';
}

}  // namespace lockstep
