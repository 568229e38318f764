// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/profile_window.h"

#include <charconv>
#include <system_error>

namespace lockstep {
namespace {

bool read(std::string_view text, std::int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::optional<ProfileWindow> profile_window_of(std::string_view text) {
  constexpr std::string_view key = "steps=";
  const auto colon = text.find(':');
  if (!text.starts_with(key) || colon == text.npos) return std::nullopt;
  ProfileWindow window;
  const bool are_numbers = read(text.substr(key.size(), colon - key.size()), window.first) &&
                           read(text.substr(colon + 1), window.end);
  if (!are_numbers || window.first < 0 || window.end <= window.first) return std::nullopt;
  return window;
}

}  // namespace lockstep
