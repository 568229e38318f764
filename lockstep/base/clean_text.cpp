// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/clean_text.h"

#include <algorithm>

namespace lockstep {
namespace {

unsigned char byte_of(std::string_view text, std::size_t i) {
  return static_cast<unsigned char>(text[i]);
}

// Returns the size in bytes of the first character of `text`; 0 when it is not UTF-8. The second
// byte's limits are those of the Unicode standard's table 3-7, which rules out overlong forms and
// surrogates.
std::size_t bytes_of_character(std::string_view text) {
  const unsigned char first = byte_of(text, 0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const std::size_t size = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (text.size() < size) return 0;
  const unsigned char least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte_of(text, 1) < least || byte_of(text, 1) > most) return 0;
  for (std::size_t i = 2; i < size; ++i)
    if ((byte_of(text, i) & 0xC0) != 0x80) return 0;
  return size;
}

// `character` is one UTF-8 character, or a single byte that is not UTF-8.
std::string_view shown(std::string_view character, bool is_utf8) {
  if (!is_utf8) return "\xEF\xBF\xBD";
  const unsigned char first = byte_of(character, 0);
  if (first < 0x20 || first == 0x7F) return " ";
  if (first == 0xC2 && byte_of(character, 1) < 0xA0) return "\xC2\xBF";
  return character;
}

}  // namespace

std::string_view cut_text(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (byte_of(text, most) & 0xC0) == 0x80) --most;
  return text.substr(0, most);
}

std::string clean_text(std::string_view text, std::size_t most) {
  std::string clean;
  while (!text.empty()) {
    const std::size_t bytes = bytes_of_character(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(bytes, 1));
    const std::string_view visible = shown(character, bytes != 0);
    if (visible.size() > most - clean.size()) break;
    clean += visible;
    text.remove_prefix(character.size());
  }
  return clean;
}

}  // namespace lockstep
