// SPDX-License-Identifier: Apache-2.0
#include "tools/suggestion.h"

#include <algorithm>
#include <cstddef>

namespace lockstep::tools {
namespace {

// Swapped neighbours count as one edit.
std::size_t distance(std::string_view one, std::string_view other) {
  const std::size_t width = other.size() + 1;
  std::vector<std::size_t> table((one.size() + 1) * width);
  for (std::size_t i = 0; i <= one.size(); ++i)
    for (std::size_t j = 0; j < width; ++j) {
      const std::size_t at = i * width + j;
      table[at] = i + j;
      if (i == 0 || j == 0) continue;
      const std::size_t differs = one[i - 1] == other[j - 1] ? 0 : 1;
      table[at] =
          std::min({table[at - width] + 1, table[at - 1] + 1, table[at - width - 1] + differs});
      if (i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1])
        table[at] = std::min(table[at], table[at - 2 * width - 2] + 1);
    }
  return table[one.size() * width + other.size()];
}

}  // namespace

std::string suggestion_for(std::string_view name, const std::vector<std::string>& names) {
  std::string best;
  std::size_t fewest = 3;
  for (const std::string& each : names) {
    const std::size_t changes =
        name.size() > 1 && each.starts_with(name) ? 1 : distance(name, each);
    if (changes >= fewest || changes + 1 >= each.size()) continue;
    best = each;
    fewest = changes;
  }
  return best;
}

std::string unknown_subcommand(std::string_view command, std::string_view word,
                               const std::vector<std::string>& names) {
  const std::string text = "there is no subcommand '" + std::string(word) + "'";
  const std::string meant = suggestion_for(word, names);
  if (meant.empty()) return text + list_of_subcommands(names);
  return text + "; did you mean `" + std::string(command) + " " + meant + "`?";
}

std::string list_of_subcommands(const std::vector<std::string>& names) {
  std::string text = "; the subcommands are ";
  for (const std::string& each : names) text += each + (&each == &names.back() ? "" : ", ");
  return text;
}

}  // namespace lockstep::tools
