// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/name_pattern.h"

#include <fnmatch.h>

#include <algorithm>

namespace lockstep {

std::vector<std::string> levels_of(const std::string& name) {
  std::vector<std::string> levels(1);
  for (const char c : name)
    if (c == '.')
      levels.emplace_back();
    else
      levels.back() += c;
  return levels;
}

bool matches(const std::string& pattern, const std::string& name) {
  const auto patterns = levels_of(pattern), levels = levels_of(name);
  return std::equal(patterns.begin(), patterns.end(), levels.begin(), levels.end(),
                    [](const std::string& one, const std::string& other) {
                      return ::fnmatch(one.c_str(), other.c_str(), 0) == 0;
                    });
}

std::optional<std::string> matching_parent(const std::string& pattern, const std::string& name) {
  const std::size_t depth = levels_of(pattern).size();
  std::size_t end = 0;
  for (std::size_t level = 0; level < depth; ++level) {
    end = name.find('.', level == 0 ? 0 : end + 1);
    if (end == name.npos) return {};
  }
  std::string parent = name.substr(0, end);
  if (!matches(pattern, parent)) return {};
  return parent;
}

}  // namespace lockstep
