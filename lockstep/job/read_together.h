// Reads two clocks at one moment.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <type_traits>
#include <utility>

namespace lockstep::job {

// The fastest of several readings: a thread that loses its core between the clocks reads a wrong
// pair.
template <class First, class Second>
auto read_together(First first, Second second) {
  static_assert(std::is_integral_v<decltype(first())>);
  std::pair<decltype(first()), decltype(second())> best{};
  auto shortest = std::numeric_limits<decltype(first())>::max();
  for (int attempt = 0; attempt < 5; ++attempt) {
    const auto before = first();
    const auto other = second();
    const auto took = first() - before;
    if (took > shortest) continue;
    shortest = took;
    best = {before + took / 2, other};
  }
  return best;
}

}  // namespace lockstep::job
