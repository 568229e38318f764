// A part of a parameter.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

// Elements [begin, end) of a parameter in memory order, and the rank that steps them.
struct Shard {
  std::size_t parameter = 0;  // Index over all param groups.
  std::int64_t begin = 0;
  std::int64_t end = 0;
  int owner = 0;
};

}  // namespace lockstep
