// Sequential reader of little-endian numbers. Errors: BadImage if the bytes end too early.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/toolkit/datasets/images/image_reader.h"

namespace lockstep::datasets {

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  std::size_t position() const { return position_; }
  std::size_t left() const { return bytes_.size() - position_; }

  void seek(std::size_t position) {
    if (position > bytes_.size()) throw BadImage("the file ends too early");
    position_ = position;
  }

  std::span<const std::uint8_t> take(std::size_t count) {
    if (count > left()) throw BadImage("the file ends too early");
    position_ += count;
    return bytes_.subspan(position_ - count, count);
  }

  std::uint8_t u8() { return take(1)[0]; }
  std::uint32_t u16() { return number(2); }
  std::uint32_t u24() { return number(3); }
  std::uint32_t u32() { return number(4); }

 private:
  std::uint32_t number(std::size_t count) {
    std::uint32_t value = 0;
    const auto bytes = take(count);
    for (std::size_t i = count; i > 0; --i) value = value << 8 | bytes[i - 1];
    return value;
  }

  const std::span<const std::uint8_t> bytes_;
  std::size_t position_ = 0;
};

}  // namespace lockstep::datasets
