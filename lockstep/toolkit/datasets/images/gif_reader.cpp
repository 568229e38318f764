// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/toolkit/datasets/images/byte_reader.h"
#include "lockstep/toolkit/datasets/images/claimed_size.h"
#include "lockstep/toolkit/datasets/images/image_reader.h"

namespace lockstep::datasets {
namespace {

// RGB by index.
using GifPalette = std::array<std::array<std::uint8_t, channels>, 256>;

GifPalette grey_palette() {
  GifPalette palette{};
  for (std::size_t index = 0; index < palette.size(); ++index)
    palette[index].fill(static_cast<std::uint8_t>(index));
  return palette;
}

// As in Pillow, ignores a palette whose colours equal their indices: the previous one stays,
// initially greys. In other palettes, indices beyond the end are black.
void take_palette(std::span<const std::uint8_t> colors, GifPalette& palette) {
  const GifPalette grey = grey_palette();
  GifPalette taken{};
  bool is_grey = true;
  for (std::size_t index = 0; index < colors.size() / channels; ++index) {
    std::copy_n(&colors[channels * index], channels, taken[index].begin());
    is_grey = is_grey && taken[index] == grey[index];
  }
  if (!is_grey) palette = taken;
}

// Concatenates sub-blocks, each preceded by its length.
std::vector<std::uint8_t> joined_blocks(ByteReader& reader) {
  std::vector<std::uint8_t> data;
  while (reader.left() > 0) {
    const std::size_t length = reader.u8();
    if (length == 0) break;
    // A missing end is accepted if the decoder has all pixels.
    const auto block = reader.take(std::min(length, reader.left()));
    data.insert(data.end(), block.begin(), block.end());
  }
  return data;
}

// LZW with codes of variable length (GIF89a specification, appendix F).
class LzwDecoder {
 public:
  LzwDecoder(std::span<const std::uint8_t> data, int bits)
      : data_(data), bits_(valid(bits)), clear_(1 << bits_) {
    for (int code = 0; code < clear_; ++code)
      suffix_[static_cast<std::size_t>(code)] = static_cast<std::uint8_t>(code);
    reset();
  }

  // Memory grows with the decoded pixels. Errors: BadImage if the data ends early.
  std::vector<std::uint8_t> decode(std::size_t count) {
    std::vector<std::uint8_t> pixels;
    while (pixels.size() < count) {
      const int code = next_code();
      if (code == clear_) {
        reset();
      } else if (code == clear_ + 1) {
        throw BadImage("the file ends too early");
      } else {
        expand(code, pixels);
      }
    }
    pixels.resize(count);  // The last code may exceed it.
    return pixels;
  }

 private:
  static constexpr int most_bits = 12;
  static constexpr int none = -1;

  static int valid(int bits) {
    if (bits < 1 || bits > most_bits - 1) throw BadImage("a damaged GIF image: its code size");
    return bits;
  }

  void reset() {
    length_ = bits_ + 1;
    next_ = clear_ + 2;
    last_ = none;
  }

  int next_code() {
    while (buffered_ < length_) {
      if (at_ == data_.size()) throw BadImage("the file ends too early");
      buffer_ |= static_cast<std::uint32_t>(data_[at_++]) << buffered_;
      buffered_ += 8;
    }
    const int code = static_cast<int>(buffer_ & ((1U << length_) - 1));
    buffer_ >>= length_;
    buffered_ -= length_;
    return code;
  }

  // Appends a code's pixels, and adds the new code to the table.
  void expand(int code, std::vector<std::uint8_t>& out) {
    if (code > next_ || (last_ == none && code >= clear_) || (code == next_ && last_ == none))
      throw BadImage("a damaged GIF image: its codes");
    std::array<std::uint8_t, 1 << most_bits> reversed;
    std::size_t count = 0;
    int rest = code;
    if (code == next_) {  // The last code's string, and its first pixel again.
      reversed[count++] = first_;
      rest = last_;
    }
    while (rest >= clear_) {
      reversed[count++] = suffix_[static_cast<std::size_t>(rest)];
      rest = prefix_[static_cast<std::size_t>(rest)];
    }
    first_ = suffix_[static_cast<std::size_t>(rest)];
    reversed[count++] = first_;
    if (last_ != none && next_ < 1 << most_bits) {
      prefix_[static_cast<std::size_t>(next_)] = static_cast<std::uint16_t>(last_);
      suffix_[static_cast<std::size_t>(next_)] = first_;
      if (++next_ == 1 << length_ && length_ < most_bits) ++length_;
    }
    last_ = code;
    out.insert(out.end(), reversed.rend() - static_cast<std::ptrdiff_t>(count), reversed.rend());
  }

  const std::span<const std::uint8_t> data_;
  const int bits_;
  const int clear_;
  std::size_t at_ = 0;
  std::uint32_t buffer_ = 0;
  int buffered_ = 0;  // In bits.
  int length_ = 0;    // Bits per code.
  int next_ = 0;      // To add.
  int last_ = none;
  std::uint8_t first_ = 0;  // In the last code's string.
  std::array<std::uint16_t, 1 << most_bits> prefix_{};
  std::array<std::uint8_t, 1 << most_bits> suffix_{};
};

class GifReader final : public ImageReader {
 public:
  explicit GifReader(std::span<const std::uint8_t> bytes) : reader_(bytes) {
    reader_.seek(6);  // Behind GIF87a or GIF89a.
    size_.width = reader_.u16();
    size_.height = reader_.u16();
    const int flags = reader_.u8();
    reader_.take(2);  // Background colour and aspect ratio: unused in Pillow.
    read_palette(flags);
    find_frame();
    require_possible(size_, bytes.size());
    // A code of n bits, at most 12, produces at most 2^n pixels.
    constexpr std::int64_t most_for_code = 4096;
    require_held(frame_.size, frame_.size.width * frame_.size.height / most_for_code * 12 / 8,
                 bytes.size());
  }

  const ImageSize& size() const override { return size_; }

  void read(const Region& region, Pixels& to) override {
    const auto frame = decoded_frame();
    to.resize(region.size);
    for (std::int64_t y = 0; y < region.size.height; ++y)
      for (std::int64_t x = 0; x < region.size.width; ++x) {
        const std::int64_t column = region.left + x - frame_.left;
        const std::int64_t row = region.top + y - frame_.top;
        const bool is_in_frame =
            column >= 0 && column < frame_.size.width && row >= 0 && row < frame_.size.height;
        const std::uint8_t index =
            is_in_frame ? frame[static_cast<std::size_t>(row * frame_.size.width + column)]
                        : transparent_.value_or(0);
        std::memcpy(to.row(y) + channels * x, palette_[index].data(), channels);
      }
  }

 private:
  void read_palette(int flags) {
    if ((flags & 0x80) != 0) take_palette(reader_.take(channels << ((flags & 7) + 1)), palette_);
  }

  // Stops at the first frame's image data.
  void find_frame() {
    for (;;) {
      switch (reader_.u8()) {
        case '!':
          read_extension();
          break;
        case ',':
          return read_descriptor();
        case ';':
          throw BadImage("a GIF image without a frame");
        default:
          break;  // As Pillow, skips other bytes.
      }
    }
  }

  void read_extension() {
    constexpr int graphic_control = 0xf9;
    const int label = reader_.u8();
    const std::vector<std::uint8_t> data = joined_blocks(reader_);
    if (label == graphic_control && data.size() >= 4 && (data[0] & 1) != 0) transparent_ = data[3];
  }

  void read_descriptor() {
    frame_.left = reader_.u16();
    frame_.top = reader_.u16();
    frame_.size.width = reader_.u16();
    frame_.size.height = reader_.u16();
    // As in Pillow, a larger frame enlarges the screen.
    size_.width = std::max(size_.width, frame_.right());
    size_.height = std::max(size_.height, frame_.bottom());
    const int flags = reader_.u8();
    is_interlaced_ = (flags & 0x40) != 0;
    read_palette(flags);
    code_bits_ = reader_.u8();
  }

  std::vector<std::uint8_t> decoded_frame() {
    const auto pixels = static_cast<std::size_t>(frame_.size.width * frame_.size.height);
    const std::vector<std::uint8_t> data = joined_blocks(reader_);
    std::vector<std::uint8_t> indices = LzwDecoder(data, code_bits_).decode(pixels);
    return is_interlaced_ ? without_interlace(indices) : indices;
  }

  std::vector<std::uint8_t> without_interlace(const std::vector<std::uint8_t>& indices) const {
    struct Pass {
      std::int64_t first;
      std::int64_t step;
    };
    std::vector<std::uint8_t> rows(indices.size());
    auto from = indices.begin();
    for (const auto& [first, step] : std::array<Pass, 4>{{{0, 8}, {4, 8}, {2, 4}, {1, 2}}})
      for (std::int64_t y = first; y < frame_.size.height; y += step) {
        std::copy_n(from, frame_.size.width, rows.begin() + y * frame_.size.width);
        from += frame_.size.width;
      }
    return rows;
  }

  ByteReader reader_;
  ImageSize size_;
  Region frame_;
  GifPalette palette_ = grey_palette();
  std::optional<std::uint8_t> transparent_;
  bool is_interlaced_ = false;
  int code_bits_ = 0;
};

}  // namespace

std::unique_ptr<ImageReader> read_gif(std::span<const std::uint8_t> bytes) {
  return std::make_unique<GifReader>(bytes);
}

}  // namespace lockstep::datasets
