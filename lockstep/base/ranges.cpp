// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/ranges.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep {

std::string as_ranges(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t first = 0; first < numbers.size();) {
    std::size_t last = first;
    while (last + 1 < numbers.size() && numbers[last + 1] - 1 == numbers[last]) ++last;
    if (!text.empty()) text += ',';
    text += last == first ? fmt::format("{}", numbers[first])
                          : fmt::format("{}-{}", numbers[first], numbers[last]);
    first = last + 1;
  }
  return text;
}

std::string name_of_ranks(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", as_ranges(ranks));
}

std::vector<int> ranks_within(std::vector<int> ranks, int size) {
  std::erase_if(ranks, [size](int rank) { return rank < 0 || rank >= size; });
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace lockstep
