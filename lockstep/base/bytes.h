// Encodes and decodes little-endian numbers and length-prefixed text.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep {

class ByteWriter {
 public:
  explicit ByteWriter(std::size_t capacity) { bytes_.reserve(capacity); }

  template <class Number>
  ByteWriter& number(Number value) {
    for (std::size_t i = 0; i < sizeof(Number); ++i)
      bytes_ += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i));
    return *this;
  }
  ByteWriter& raw(std::string_view bytes) {
    bytes_ += bytes;
    return *this;
  }
  ByteWriter& prefixed(std::string_view bytes) {
    return number(static_cast<std::uint32_t>(bytes.size())).raw(bytes);
  }
  // Writes `width` bytes: the length in one byte, `bytes`, then zeros. `bytes` must fit.
  ByteWriter& padded(std::string_view bytes, std::size_t width) {
    check(bytes.size() < width && width <= 256, "a text does not fit into its field");
    number(static_cast<std::uint8_t>(bytes.size())).raw(bytes);
    bytes_.append(width - 1 - bytes.size(), '\0');
    return *this;
  }

  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Returns views into the given bytes. Errors: corrupt.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  template <class Number>
  Number number() {
    const std::string_view part = raw(sizeof(Number));
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(Number); ++i)
      value |= static_cast<std::uint64_t>(static_cast<unsigned char>(part[i])) << (8 * i);
    return static_cast<Number>(value);
  }
  std::string_view raw(std::size_t count) {
    if (count > bytes_.size()) throw Error(Fault::corrupt, "a message ends too early");
    const std::string_view part = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return part;
  }
  std::string_view prefixed(std::size_t most) {
    const auto count = number<std::uint32_t>();
    if (count > most) throw Error(Fault::corrupt, "a field of a message is too long");
    return raw(count);
  }
  std::string_view padded(std::size_t width) {
    const std::string_view field = raw(width);
    const std::size_t count = static_cast<unsigned char>(field[0]);
    if (count >= width || field.find_first_not_of('\0', 1 + count) != field.npos)
      throw Error(Fault::corrupt, "a text field of a message is malformed");
    return field.substr(1, count);
  }
  void end() const {
    if (!bytes_.empty()) throw Error(Fault::corrupt, "a message goes on after its end");
  }

 private:
  std::string_view bytes_;
};

}  // namespace lockstep
