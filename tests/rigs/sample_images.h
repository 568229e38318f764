// Encodes images for tests: JPEG, PNG and WebP files of every kind that the decoders support.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::test {

struct JpegKind {
  int components = 3;                     // 1: grey, 3: YCbCr, 4: inverted CMYK.
  std::pair<int, int> sampling = {2, 2};  // The first component's, in x and y.
  bool progressive = false;
  int restart_rows = 0;  // Rows of blocks between restart markers.
};

struct PngKind {
  int color_type = 2;  // 0: grey, 2: RGB, 3: palette, 4: grey with alpha, 6: RGB with alpha.
  int bit_depth = 8;
  bool interlaced = false;
};

// A file of an image with smooth and rough parts, which depend on `seed`.
std::string jpeg_file(int width, int height, const JpegKind& kind = {}, unsigned seed = 1);
std::string png_file(int width, int height, const PngKind& kind = {}, unsigned seed = 1);
std::string webp_file(int width, int height, bool is_lossless, unsigned seed = 1);

// An image of one colour, without loss.
std::string png_of_color(int width, int height, std::uint8_t red, std::uint8_t green,
                         std::uint8_t blue);

// All kinds that the decoders support.
std::vector<std::pair<std::string, JpegKind>> jpeg_kinds();
std::vector<std::pair<std::string, PngKind>> png_kinds();
std::vector<std::pair<std::string, bool>> webp_kinds();  // Empty in a build without libwebp.

}  // namespace lockstep::test
