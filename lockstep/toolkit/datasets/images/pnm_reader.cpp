// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/toolkit/datasets/images/byte_reader.h"
#include "lockstep/toolkit/datasets/images/claimed_size.h"
#include "lockstep/toolkit/datasets/images/image_reader.h"

namespace lockstep::datasets {
namespace {

constexpr std::size_t longest_token = 10;  // As in Pillow.

bool is_space(std::uint8_t byte) {
  return byte == ' ' || ('\t' <= byte && byte <= '\r');  // Also \n, \v and \f.
}

// P1 to P6: bits, greys, colours, as decimal text (1 to 3) or bytes (4 to 6).
class PnmReader final : public ImageReader {
 public:
  explicit PnmReader(std::span<const std::uint8_t> bytes) : reader_(bytes) {
    reader_.seek(1);
    kind_ = reader_.u8() - '0';
    if (!is_space(reader_.u8())) throw BadImage("a damaged PNM image: its kind");
    size_.width = number_in_header();
    size_.height = number_in_header();
    require_possible(size_, bytes.size());
    if (is_bits()) {
      most_ = 1;
    } else {
      most_ = number_in_header();
      if (most_ < 1 || most_ > 65535) throw BadImage("a damaged PNM image: its largest value");
    }
    if (least_bytes() > static_cast<std::int64_t>(reader_.left()))
      throw BadImage("the file ends too early");
  }

  const ImageSize& size() const override { return size_; }

  void read(const Region& region, Pixels& to) override {
    Pixels whole;
    whole.resize(size_);
    for (std::int64_t y = 0; y < region.bottom(); ++y) {
      if (is_bits() && !is_plain()) bits_ = 0;  // Each row begins at a whole byte.
      for (std::int64_t x = 0; x < size_.width; ++x) read_pixel(whole.row(y) + channels * x);
    }
    to.copy(whole.view().part(region));
  }

 private:
  bool is_plain() const { return kind_ <= 3; }
  bool is_bits() const { return kind_ % 3 == 1; }
  bool is_grey() const { return kind_ % 3 == 2; }

  std::int64_t least_bytes() const {
    const std::int64_t pixels = size_.width * size_.height;
    if (is_plain()) return is_bits() ? pixels : pixels * (is_grey() ? 2 : 6) - 1;
    if (is_bits()) return (size_.width + 7) / 8 * size_.height;
    return pixels * (is_grey() ? 1 : channels) * (most_ > 255 ? 2 : 1);
  }

  // Comments do not end a token.
  std::uint8_t next_plain() {
    std::uint8_t byte = reader_.u8();
    while (byte == '#') {
      while (byte != '\n' && byte != '\r') byte = reader_.u8();
      byte = reader_.u8();
    }
    return byte;
  }

  // Also consumes the following whitespace byte.
  std::int64_t next_number() {
    std::string token;
    for (bool is_last = false; !is_last && token.size() <= longest_token;) {
      const std::uint8_t byte = next_plain();
      if (is_space(byte) && token.empty()) continue;
      if (!is_space(byte)) token += static_cast<char>(byte);
      is_last = is_space(byte) || reader_.left() == 0;
    }
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), number);
    if (token.size() > longest_token || error != std::errc() ||
        end != token.data() + token.size() || number < 0)
      throw BadImage("a damaged PNM image: its numbers");
    return number;
  }

  std::int64_t number_in_header() { return next_number(); }

  void read_pixel(std::uint8_t* to) {
    if (is_bits()) {
      std::fill_n(to, channels, next_bit() ? std::uint8_t{0} : std::uint8_t{255});
    } else if (is_grey()) {
      std::fill_n(to, channels, grey(next_value()));
    } else {
      for (std::int64_t c = 0; c < channels; ++c) to[c] = scaled(next_value(), 255);
    }
  }

  bool next_bit() {
    if (is_plain()) {
      std::uint8_t byte = next_plain();
      while (is_space(byte)) byte = next_plain();
      if (byte != '0' && byte != '1') throw BadImage("a damaged PNM image: its numbers");
      return byte == '1';
    }
    if (bits_ == 0) byte_ = reader_.u8(), bits_ = 8;
    return (byte_ >> --bits_ & 1) != 0;
  }

  std::int64_t next_value() {
    if (is_plain()) {
      const std::int64_t value = next_number();
      if (value > most_) throw BadImage("a damaged PNM image: its numbers");
      return value;
    }
    const std::int64_t high = most_ > 255 ? reader_.u8() : 0;
    return high << 8 | reader_.u8();
  }

  // As in Pillow, deeper greys are up to 65535, clipped to 255.
  std::uint8_t grey(std::int64_t value) const {
    return most_ > 255 ? scaled(value, 65535) : scaled(value, 255);
  }

  // Rounds halves to even, as Python; clips to 255.
  std::uint8_t scaled(std::int64_t value, std::int64_t to_most) const {
    if (most_ == to_most) return static_cast<std::uint8_t>(std::min<std::int64_t>(value, 255));
    const double share = static_cast<double>(value) / static_cast<double>(most_);
    const double rounded = std::nearbyint(share * static_cast<double>(to_most));
    return static_cast<std::uint8_t>(std::min(rounded, 255.0));
  }

  ByteReader reader_;
  ImageSize size_;
  int kind_ = 0;
  std::int64_t most_ = 0;  // The value of white.
  std::uint8_t byte_ = 0;  // The current byte of P4.
  int bits_ = 0;           // Unused bits of byte_.
};

}  // namespace

std::unique_ptr<ImageReader> read_pnm(std::span<const std::uint8_t> bytes) {
  return std::make_unique<PnmReader>(bytes);
}

}  // namespace lockstep::datasets
