// SPDX-License-Identifier: Apache-2.0
#include "tests/rigs/sample_images.h"

// clang-format off
#include <cstdio>  // Required by jpeglib.h.
#include <jpeglib.h>
// clang-format on

#include <png.h>
#ifdef LOCKSTEP_WITH_WEBP
#include <webp/encode.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::test {
namespace {

// One byte of a picture: slopes, edges, and noise in a quarter of it.
std::uint8_t value_at(int x, int y, int channel, unsigned seed) {
  const unsigned ux = static_cast<unsigned>(x);
  const unsigned uy = static_cast<unsigned>(y);
  unsigned value = ux * (3 + static_cast<unsigned>(channel)) + uy * 2 + seed * 31;
  if ((ux / 16 + uy / 16) % 4 == 1)
    value += (ux * 7919 + uy * 104729 + seed * 13) * 2654435761U >> 24;
  if ((ux / 23) % 2 == 0) value += 90;
  return static_cast<std::uint8_t>(value);
}

std::vector<std::uint8_t> line_of(int y, int width, int channels, unsigned seed) {
  std::vector<std::uint8_t> line;
  for (int x = 0; x < width; ++x)
    for (int c = 0; c < channels; ++c) line.push_back(value_at(x, y, c, seed));
  return line;
}

void append(png_structp png, png_bytep bytes, std::size_t count) {
  static_cast<std::string*>(png_get_io_ptr(png))->append(reinterpret_cast<char*>(bytes), count);
}

[[noreturn]] void fail(png_structp, png_const_charp text) { throw std::runtime_error(text); }

// Writes rows that row(y) gives, already packed.
template <class Row>
std::string write_png(int width, int height, const PngKind& kind, Row row) {
  std::string file;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, fail, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(png, &file, append, nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height),
               kind.bit_depth, kind.color_type,
               kind.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (kind.color_type == PNG_COLOR_TYPE_PALETTE) {
    std::vector<png_color> palette(std::size_t{1} << kind.bit_depth);
    for (std::size_t i = 0; i < palette.size(); ++i)
      palette[i] = {static_cast<png_byte>(i * 37), static_cast<png_byte>(255 - i),
                    static_cast<png_byte>(i * 11 + 5)};
    png_set_PLTE(png, info, palette.data(), static_cast<int>(palette.size()));
  }
  std::vector<std::vector<std::uint8_t>> rows;
  std::vector<png_bytep> pointers;
  for (int y = 0; y < height; ++y) rows.push_back(row(y));
  for (auto& line : rows) pointers.push_back(line.data());
  png_set_rows(png, info, pointers.data());
  png_write_png(png, info, PNG_TRANSFORM_IDENTITY, nullptr);
  png_destroy_write_struct(&png, &info);
  return file;
}

}  // namespace

std::string jpeg_file(int width, int height, const JpegKind& kind, unsigned seed) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long count = 0;
  jpeg_mem_dest(&info, &bytes, &count);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = kind.components;
  info.in_color_space = kind.components == 1   ? JCS_GRAYSCALE
                        : kind.components == 3 ? JCS_RGB
                                               : JCS_CMYK;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 90, TRUE);
  if (kind.components == 3) {
    info.comp_info[0].h_samp_factor = kind.sampling.first;
    info.comp_info[0].v_samp_factor = kind.sampling.second;
  }
  info.restart_in_rows = kind.restart_rows;
  if (kind.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  for (int y = 0; y < height; ++y) {
    std::vector<std::uint8_t> line = line_of(y, width, kind.components, seed);
    JSAMPROW row = line.data();
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::string file(reinterpret_cast<char*>(bytes), count);
  std::free(bytes);
  return file;
}

std::string png_file(int width, int height, const PngKind& kind, unsigned seed) {
  const int channels = kind.color_type == PNG_COLOR_TYPE_RGB          ? 3
                       : kind.color_type == PNG_COLOR_TYPE_RGB_ALPHA  ? 4
                       : kind.color_type == PNG_COLOR_TYPE_GRAY_ALPHA ? 2
                                                                      : 1;
  const int bytes = (width * channels * kind.bit_depth + 7) / 8;
  return write_png(width, height, kind, [&](int y) { return line_of(y, bytes, 1, seed); });
}

std::string png_of_color(int width, int height, std::uint8_t red, std::uint8_t green,
                         std::uint8_t blue) {
  std::vector<std::uint8_t> line;
  for (int x = 0; x < width; ++x) line.insert(line.end(), {red, green, blue});
  return write_png(width, height, {}, [&](int) { return line; });
}

#ifdef LOCKSTEP_WITH_WEBP
std::string webp_file(int width, int height, bool is_lossless, unsigned seed) {
  std::vector<std::uint8_t> pixels;
  for (int y = 0; y < height; ++y) {
    const auto line = line_of(y, width, 3, seed);
    pixels.insert(pixels.end(), line.begin(), line.end());
  }
  std::uint8_t* encoded = nullptr;
  const std::size_t bytes =
      is_lossless ? WebPEncodeLosslessRGB(pixels.data(), width, height, width * 3, &encoded)
                  : WebPEncodeRGB(pixels.data(), width, height, width * 3, 90, &encoded);
  const std::string file(reinterpret_cast<const char*>(encoded), bytes);
  WebPFree(encoded);
  if (file.empty()) throw std::runtime_error("libwebp did not encode");
  return file;
}

std::vector<std::pair<std::string, bool>> webp_kinds() {
  return {{"lossy", false}, {"lossless", true}};
}
#else
std::string webp_file(int, int, bool, unsigned) { throw std::runtime_error("without libwebp"); }

std::vector<std::pair<std::string, bool>> webp_kinds() { return {}; }
#endif

std::vector<std::pair<std::string, JpegKind>> jpeg_kinds() {
  return {{"420", {}},
          {"444", {.sampling = {1, 1}}},
          {"422", {.sampling = {2, 1}}},
          {"440", {.sampling = {1, 2}}},
          {"411", {.sampling = {4, 1}}},
          {"grey", {.components = 1}},
          {"cmyk", {.components = 4}},
          {"progressive 420", {.progressive = true}},
          {"progressive 444", {.sampling = {1, 1}, .progressive = true}},
          {"progressive grey", {.components = 1, .progressive = true}},
          {"420 with restarts", {.restart_rows = 2}}};
}

std::vector<std::pair<std::string, PngKind>> png_kinds() {
  std::vector<std::pair<std::string, PngKind>> kinds;
  const auto add = [&](const std::string& name, int color_type, int bit_depth) {
    std::string title = name;
    title += ' ';
    title += std::to_string(bit_depth);
    kinds.push_back({title, {.color_type = color_type, .bit_depth = bit_depth}});
    title += " interlaced";
    kinds.push_back(
        {title, {.color_type = color_type, .bit_depth = bit_depth, .interlaced = true}});
  };
  for (const int depth : {1, 2, 4, 8, 16}) add("grey", PNG_COLOR_TYPE_GRAY, depth);
  for (const int depth : {1, 2, 4, 8}) add("palette", PNG_COLOR_TYPE_PALETTE, depth);
  for (const int depth : {8, 16}) {
    add("rgb", PNG_COLOR_TYPE_RGB, depth);
    add("grey with alpha", PNG_COLOR_TYPE_GRAY_ALPHA, depth);
    add("rgb with alpha", PNG_COLOR_TYPE_RGB_ALPHA, depth);
  }
  return kinds;
}

}  // namespace lockstep::test
