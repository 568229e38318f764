// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/variables.h"

#include <fmt/format.h>

#include <charconv>

#include "lockstep/base/error.h"

namespace lockstep {

std::optional<std::string> Variables::text(const char* key) const {
  const char* found = lookup_(key);
  if (found == nullptr || *found == '\0') return std::nullopt;
  return found;
}

template <class Number>
std::optional<Number> Variables::parsed(const char* key) const {
  const auto digits = text(key);
  if (!digits) return std::nullopt;
  Number value = 0;
  const char* end = digits->data() + digits->size();
  const auto [stop, problem] = std::from_chars(digits->data(), end, value);
  require(problem == std::errc() && stop == end,
          [&] { return fmt::format("{}='{}' is not a whole number", key, *digits); });
  return value;
}

std::optional<int> Variables::number(const char* key) const { return parsed<int>(key); }

std::optional<std::uint64_t> Variables::id(const char* key) const {
  return parsed<std::uint64_t>(key);
}

}  // namespace lockstep
