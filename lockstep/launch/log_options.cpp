// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/log_options.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Returns the whole of `text` as a non-negative number.
std::optional<int> number_in(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

std::optional<Streams> streams_in(std::string_view text) {
  const std::optional<int> number = number_in(text);
  if (text.size() != 1 || !number || *number > 3) return std::nullopt;
  return static_cast<Streams>(*number);
}

}  // namespace

Streams StreamChoice::of(int local_rank) const {
  const auto own = of_local_rank.find(local_rank);
  return own != of_local_rank.end() ? own->second : all;
}

StreamChoice parse_streams(std::string_view text) {
  if (const auto all = streams_in(text)) return {.all = *all};
  const auto wrong = [&](std::string_view why) {
    return Error(Fault::misuse,
                 fmt::format("streams are 0 to 3 (1 stdout, 2 stderr, 3 both) or such of local "
                             "ranks, as 0:1,1:2; {} in '{}'",
                             why, text));
  };
  StreamChoice choice;
  for (std::string_view rest = text;;) {
    const auto comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const auto colon = item.find(':');
    if (colon == item.npos) throw wrong(fmt::format("'{}' is neither", item));
    const auto local_rank = number_in(item.substr(0, colon));
    const auto streams = streams_in(item.substr(colon + 1));
    if (!local_rank || !streams) throw wrong(fmt::format("'{}' is neither", item));
    if (!choice.of_local_rank.emplace(*local_rank, *streams).second)
      throw wrong(fmt::format("local rank {} is there twice", *local_rank));
    if (comma == rest.npos) return choice;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace lockstep
