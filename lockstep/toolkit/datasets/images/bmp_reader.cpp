// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/toolkit/datasets/images/byte_reader.h"
#include "lockstep/toolkit/datasets/images/claimed_size.h"
#include "lockstep/toolkit/datasets/images/image_reader.h"

namespace lockstep::datasets {
namespace {

constexpr std::size_t file_header = 14;

enum BmpCompression : std::uint32_t { none = 0, rle8 = 1, rle4 = 2, bitfields = 3 };

using Masks = std::array<std::uint32_t, 4>;

// Masks that Pillow supports for 4-byte pixels.
constexpr std::array<Masks, 8> masks_of_four{{{0xff0000, 0xff00, 0xff, 0},
                                              {0xff000000, 0xff0000, 0xff00, 0},
                                              {0xff000000, 0xff00, 0xff, 0},
                                              {0xff000000, 0xff0000, 0xff00, 0xff},
                                              {0xff, 0xff00, 0xff0000, 0xff000000},
                                              {0xff0000, 0xff00, 0xff, 0xff000000},
                                              {0xff000000, 0xff00, 0xff, 0xff0000},
                                              {0, 0, 0, 0}}};
constexpr Masks usual_masks = masks_of_four[0];
constexpr Masks masks_of_555{0x7c00, 0x3e0, 0x1f, 0};
constexpr Masks masks_of_565{0xf800, 0x7e0, 0x1f, 0};

class BmpReader final : public ImageReader {
 public:
  explicit BmpReader(std::span<const std::uint8_t> bytes) : bytes_(bytes), reader_(bytes) {
    reader_.seek(10);
    const std::size_t offset = reader_.u32();
    header_size_ = reader_.u32();
    if (header_size_ == 12)
      read_core_header();
    else
      read_info_header();
    require_possible(size_, bytes.size());
    require_known_depth();
    if (bits_ <= 8) read_palette();
    find_data(offset);
    reader_.seek(data_);
    if (!is_run_length() && row_bytes() > static_cast<std::int64_t>(reader_.left()) / size_.height)
      throw BadImage("the file ends too early");
  }

  const ImageSize& size() const override { return size_; }

  void read(const Region& region, Pixels& to) override {
    // Before allocating the result: the data may end too early.
    const std::vector<std::uint8_t> indices =
        is_run_length() ? run_length_indices() : std::vector<std::uint8_t>();
    to.resize(region.size);
    for (std::int64_t y = 0; y < region.size.height; ++y) {
      const std::int64_t row = region.top + y;
      const std::int64_t stored = is_top_down_ ? row : size_.height - 1 - row;
      const std::uint8_t* const from =
          is_run_length() ? indices.data() + stored * size_.width
                          : bytes_.data() + data_ + static_cast<std::size_t>(stored * row_bytes());
      for (std::int64_t x = 0; x < region.size.width; ++x)
        write_pixel(from, region.left + x, to.row(y) + channels * x);
    }
  }

 private:
  // OS/2 1.x.
  void read_core_header() {
    size_.width = reader_.u16();
    size_.height = reader_.u16();
    reader_.take(2);  // Planes.
    bits_ = static_cast<int>(reader_.u16());
    color_bytes_ = 3;
  }

  void read_info_header() {
    constexpr std::array<std::size_t, 6> sizes{40, 52, 56, 64, 108, 124};
    if (std::ranges::find(sizes, header_size_) == sizes.end())
      throw BadImage("a BMP image with a header of unknown size: " + std::to_string(header_size_));
    size_.width = reader_.u32();
    const std::uint32_t height = reader_.u32();
    is_top_down_ = height >> 24 == 0xff;  // Negative; Pillow checks only its top byte.
    size_.height = is_top_down_ ? (std::int64_t{1} << 32) - height : height;
    reader_.take(2);
    bits_ = static_cast<int>(reader_.u16());
    compression_ = reader_.u32();
    reader_.take(12);  // Data size, pixels per meter.
    colors_ = reader_.u32();
    reader_.take(4);  // Important colours.
    if (compression_ == bitfields) read_masks();
    reader_.seek(std::max(file_header + header_size_, reader_.position()));
  }

  // Masks follow a 40-byte header, or are part of a longer one; alpha from 56 bytes on.
  void read_masks() {
    const std::size_t count = header_size_ >= 56 ? 4 : 3;
    for (std::size_t i = 0; i < count; ++i) masks_[i] = reader_.u32();
    if (count == 3) masks_[3] = 0;
  }

  void require_known_depth() {
    constexpr std::array<int, 6> depths{1, 4, 8, 16, 24, 32};
    if (std::ranges::find(depths, bits_) == depths.end())
      throw BadImage("a BMP image of " + std::to_string(bits_) + " bits for each pixel");
    const bool has_masks = compression_ == bitfields;
    const bool is_known = compression_ == none || (is_run_length() && bits_ <= 8) ||
                          (has_masks && bits_ >= 16 && are_known(masks_));
    if (!is_known)
      throw BadImage("a BMP image of compression " + std::to_string(compression_) +
                     ", or with unusual masks of colours");
    if (!has_masks) masks_ = bits_ == 16 ? masks_of_555 : usual_masks;
    if (bits_ == 32 && masks_[0] == 0) masks_ = usual_masks;
  }

  bool are_known(const Masks& masks) const {
    const auto is_same = [&](const Masks& other) {
      return std::equal(masks.begin(), masks.begin() + channels, other.begin());
    };
    if (bits_ == 32) return std::ranges::find(masks_of_four, masks) != masks_of_four.end();
    if (bits_ == 16) return is_same(masks_of_555) || is_same(masks_of_565);
    return is_same(usual_masks);
  }

  // As in Pillow, ignores a palette of greys that equal their indices: indices are then greys, and
  // bits black or white. In other palettes, indices beyond the end are black.
  void read_palette() {
    if (colors_ == 0) colors_ = 1U << bits_;
    if (colors_ > 65536) throw BadImage("a BMP image with " + std::to_string(colors_) + " colours");
    const auto stored = reader_.take(color_bytes_ * colors_);
    bool is_grey = true;
    for (std::size_t index = 0; index < std::min<std::size_t>(colors_, palette_.size()); ++index) {
      const std::uint8_t* const color = &stored[index * color_bytes_];
      palette_[index] = {color[2], color[1], color[0]};
      const std::size_t grey = colors_ == 2 && index == 1 ? 255 : index;
      is_grey = is_grey && std::ranges::count(palette_[index], grey) == channels;
    }
    if (!is_grey || colors_ > palette_.size()) return;
    for (std::size_t index = 0; index < palette_.size(); ++index)
      palette_[index].fill(static_cast<std::uint8_t>(bits_ == 1 && index > 0 ? 255 : index));
  }

  void find_data(std::size_t offset) {
    data_ = offset == 0 ? reader_.position() : offset;
    // Some programs omit the palette from the offset.
    if (offset == file_header + header_size_ && bits_ <= 8) data_ += color_bytes_ * colors_;
  }

  bool is_run_length() const { return compression_ == rle8 || compression_ == rle4; }

  // Rows are padded to 4 bytes.
  std::int64_t row_bytes() const { return (size_.width * bits_ + 31) / 32 * 4; }

  void write_pixel(const std::uint8_t* row, std::int64_t x, std::uint8_t* to) const {
    if (is_run_length() || bits_ == 8) {
      std::memcpy(to, palette_[row[x]].data(), channels);
    } else if (bits_ < 8) {
      const std::int64_t bit = x * bits_;
      const int index = row[bit / 8] >> (8 - bits_ - bit % 8) & ((1 << bits_) - 1);
      std::memcpy(to, palette_[static_cast<std::size_t>(index)].data(), channels);
    } else if (bits_ == 16) {
      const std::uint32_t value = row[2 * x] | static_cast<std::uint32_t>(row[2 * x + 1]) << 8;
      for (std::size_t c = 0; c < channels; ++c) to[c] = part_of(value, masks_[c]);
    } else {
      const std::uint8_t* const from = row + x * bits_ / 8;
      for (std::size_t c = 0; c < channels; ++c) to[c] = from[byte_of(masks_[c])];
    }
  }

  static std::uint8_t part_of(std::uint32_t value, std::uint32_t mask) {
    const std::uint32_t lowest = mask & (~mask + 1);
    return static_cast<std::uint8_t>((value & mask) / lowest * 255 / (mask / lowest));
  }

  static std::size_t byte_of(std::uint32_t mask) {
    std::size_t byte = 0;
    for (; mask > 0xff; mask >>= 8) ++byte;
    return byte;
  }

  // As Pillow, in file order. Memory grows with the decoded data.
  std::vector<std::uint8_t> run_length_indices() {
    reader_.seek(data_);
    const auto width = static_cast<std::size_t>(size_.width);
    const std::size_t count = width * static_cast<std::size_t>(size_.height);
    std::vector<std::uint8_t> indices;
    std::size_t x = 0;
    for (bool is_done = false; !is_done && indices.size() < count && reader_.left() >= 2;) {
      const std::size_t run = reader_.u8();
      const std::uint8_t value = reader_.u8();
      if (run > 0) {
        const std::size_t pixels = std::min(run, width - std::min(x, width));
        for (std::size_t i = 0; i < pixels; ++i) indices.push_back(half_of(value, i));
        x += pixels;
      } else if (value == 0) {  // End of the row.
        indices.resize((indices.size() + width - 1) / width * width);
        x = 0;
      } else if (value == 1) {
        is_done = true;
      } else if (value == 2) {  // Delta: to the right and up.
        if (reader_.left() < 2) break;
        const std::size_t right = reader_.u8();
        const std::size_t up = reader_.u8();
        indices.resize(indices.size() + std::min(count - indices.size(), right + up * width));
        x = indices.size() % width;
      } else {
        read_literals(std::min<std::size_t>(count - indices.size(), value), indices);
        x += value;
      }
    }
    if (indices.size() < count) throw BadImage("the file ends too early");
    return indices;
  }

  std::uint8_t half_of(std::uint8_t value, std::size_t pixel) const {
    if (compression_ == rle8) return value;
    return static_cast<std::uint8_t>(pixel % 2 == 0 ? value >> 4 : value & 0xf);
  }

  // Padded to an even position.
  void read_literals(std::size_t count, std::vector<std::uint8_t>& indices) {
    const auto literals = reader_.take(compression_ == rle4 ? (count + 1) / 2 : count);
    for (std::size_t i = 0; i < count; ++i)
      indices.push_back(compression_ == rle4 ? half_of(literals[i / 2], i) : literals[i]);
    if (reader_.position() % 2 != 0 && reader_.left() > 0) reader_.take(1);
  }

  const std::span<const std::uint8_t> bytes_;
  ByteReader reader_;
  std::size_t header_size_ = 0;
  ImageSize size_;
  int bits_ = 0;
  std::uint32_t compression_ = none;
  std::size_t colors_ = 0;
  std::size_t color_bytes_ = 4;
  bool is_top_down_ = false;
  Masks masks_{};
  std::array<std::array<std::uint8_t, channels>, 256> palette_{};
  std::size_t data_ = 0;  // Begin of the pixels.
};

}  // namespace

std::unique_ptr<ImageReader> read_bmp(std::span<const std::uint8_t> bytes) {
  return std::make_unique<BmpReader>(bytes);
}

}  // namespace lockstep::datasets
