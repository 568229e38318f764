// Padding of neighbouring tensors in registered memory, so that each begins at a cache line.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace lockstep {

constexpr std::size_t padded(std::size_t bytes) {
  constexpr std::size_t cache_line = 64;
  return (bytes + cache_line - 1) / cache_line * cache_line;
}

}  // namespace lockstep
