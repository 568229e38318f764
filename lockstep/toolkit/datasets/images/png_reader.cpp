// SPDX-License-Identifier: Apache-2.0
#include <png.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "lockstep/toolkit/datasets/deflate.h"
#include "lockstep/toolkit/datasets/images/claimed_size.h"
#include "lockstep/toolkit/datasets/images/image_reader.h"
#include "lockstep/toolkit/datasets/images/long_jump.h"

namespace lockstep::datasets {
namespace {

class PngReader final : public ImageReader {
 public:
  explicit PngReader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, fail, ignore_warning);
    info_ = png_ == nullptr ? nullptr : png_create_info_struct(png_);
    try {
      if (info_ == nullptr) throw std::bad_alloc();
      open();
    } catch (...) {
      png_destroy_read_struct(&png_, &info_, nullptr);
      throw;
    }
  }

  ~PngReader() override { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  const ImageSize& size() const override { return size_; }

  void read(const Region& region, Pixels& to) override {
    to.resize(region.size);
    jump_.guard([&] {
      passes_ = png_set_interlace_handling(png_);
      png_read_update_info(png_, info_);
    });
    line_bytes_ = png_get_rowbytes(png_, info_);
    lines_.resize(line_bytes_ * static_cast<std::size_t>(passes_ == 1 ? 1 : size_.height));
    jump_.guard([&] { decode(region, to); });
  }

 private:
  static PngReader& self(png_structp png) {
    return *static_cast<PngReader*>(png_get_error_ptr(png));
  }

  [[noreturn]] static void fail(png_structp png, png_const_charp text) {
    self(png).jump_.fail(text);
  }

  // Warnings concern unused data such as texts.
  static void ignore_warning(png_structp, png_const_charp) {}

  static void take_bytes(png_structp png, png_bytep to, std::size_t count) {
    PngReader& reader = self(png);
    if (count > reader.bytes_.size()) png_error(png, "the file ends too early");
    std::memcpy(to, reader.bytes_.data(), count);
    reader.bytes_ = reader.bytes_.subspan(count);
  }

  void open() {
    const std::size_t file_bytes = bytes_.size();
    jump_.guard([&] {
      png_set_read_fn(png_, this, take_bytes);
      // Chunks that do not affect pixels take no memory.
      png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
      png_read_info(png_, info_);
    });
    size_ = {png_get_image_height(png_, info_), png_get_image_width(png_, info_)};
    require_possible(size_, file_bytes);
    const auto line = static_cast<std::int64_t>(png_get_rowbytes(png_, info_));
    require_held(size_, line * size_.height / most_bytes_for_one, file_bytes);
    jump_.guard([&] { choose_format(); });
  }

  // Rows have palette indices, greys of one or two bytes, or RGB. Calls only the library.
  void choose_format() {
    const int color = png_get_color_type(png_, info_);
    const bool is_deep = png_get_bit_depth(png_, info_) == 16;
    for (std::size_t value = 0; value < table_.size(); ++value)
      table_[value].fill(static_cast<std::uint8_t>(value));
    if (color == PNG_COLOR_TYPE_PALETTE) take_palette();
    if (color == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png_);
    is_deep_grey_ = is_deep && color == PNG_COLOR_TYPE_GRAY;
    if (is_deep && !is_deep_grey_) png_set_strip_16(png_);
    png_set_strip_alpha(png_);
  }

  // As in Pillow, indices beyond the palette are black.
  void take_palette() {
    png_set_packing(png_);
    png_colorp palette = nullptr;
    int count = 0;
    png_get_PLTE(png_, info_, &palette, &count);
    for (std::size_t index = 0; index < table_.size(); ++index) {
      const png_color color = static_cast<int>(index) < count ? palette[index] : png_color{};
      table_[index] = {color.red, color.green, color.blue};
    }
  }

  // Runs within guard(): calls only the library.
  void decode(const Region& region, Pixels& to) {
    if (passes_ > 1) {
      for (int pass = 0; pass < passes_; ++pass)
        for (std::int64_t y = 0; y < size_.height; ++y) png_read_row(png_, line(y), nullptr);
      for (std::int64_t y = 0; y < region.size.height; ++y)
        convert(line(region.top + y), region, to.row(y));
    } else {
      for (std::int64_t y = 0; y < region.bottom(); ++y) {
        png_read_row(png_, lines_.data(), nullptr);
        if (y >= region.top) convert(lines_.data(), region, to.row(y - region.top));
      }
    }
    if (region.bottom() == size_.height || passes_ > 1) png_read_end(png_, nullptr);
  }

  std::uint8_t* line(std::int64_t y) {
    return lines_.data() + static_cast<std::size_t>(y) * line_bytes_;
  }

  void convert(const std::uint8_t* line, const Region& region, std::uint8_t* to) const {
    const std::int64_t value_bytes =
        static_cast<std::int64_t>(line_bytes_) / std::max<std::int64_t>(size_.width, 1);
    const std::uint8_t* from = line + region.left * value_bytes;
    if (value_bytes == channels) {
      std::memcpy(to, from, static_cast<std::size_t>(region.size.width * channels));
      return;
    }
    for (std::int64_t x = 0; x < region.size.width; ++x) {
      // Pillow clips 16-bit greys to 255, but drops the low bits of 16-bit colours.
      const std::uint8_t value =
          is_deep_grey_ ? (from[2 * x] == 0 ? from[2 * x + 1] : std::uint8_t{255}) : from[x];
      std::memcpy(to + channels * x, table_[value].data(), channels);
    }
  }

  std::span<const std::uint8_t> bytes_;  // Unread.
  LongJump jump_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  ImageSize size_;
  int passes_ = 1;
  bool is_deep_grey_ = false;
  // RGB per index or grey.
  std::array<std::array<std::uint8_t, channels>, 256> table_ = {};
  std::size_t line_bytes_ = 0;
  std::vector<std::uint8_t> lines_;  // One row; if interlaced, all.
};

}  // namespace

std::unique_ptr<ImageReader> read_png(std::span<const std::uint8_t> bytes) {
  return std::make_unique<PngReader>(bytes);
}

}  // namespace lockstep::datasets
