// F10: image files of all formats, with arbitrary input. Only a BadImage may be thrown. A region
// must have the same pixels as in the whole image, if the whole image can be decoded. The first two
// bytes select the region.

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/toolkit/datasets/images/image_reader.h"
#include "tests/fuzz/target.h"
#include "tests/rigs/sample_images.h"

namespace lockstep::fuzz {
namespace {

using datasets::ImageReader;
using datasets::Pixels;
using datasets::Region;

// Larger images take long, and find nothing new.
constexpr std::int64_t most_pixels_to_decode = 1 << 20;

template <class Choose>
std::optional<Pixels> decode(std::span<const std::uint8_t> file, Choose choose) {
  try {
    const auto reader = datasets::read_image(file);
    const ImageSize& size = reader->size();
    expect(size.height > 0 && size.width > 0);
    if (size.height * size.width > most_pixels_to_decode) return std::nullopt;
    Pixels pixels;
    reader->read(choose(size), pixels);
    return pixels;
  } catch (const datasets::BadImage&) {
    return std::nullopt;
  }
}

Region region(const ImageSize& size, std::uint8_t left, std::uint8_t top) {
  Region part{.left = left % size.width, .top = top % size.height, .size = {}};
  part.size = {(size.height - part.top + 1) / 2, (size.width - part.left + 1) / 2};
  return part;
}

void expect_same(const datasets::PixelView& a, const datasets::PixelView& b) {
  for (std::int64_t y = 0; y < a.size.height; ++y)
    expect(std::equal(a.row(y), a.row(y) + a.size.width * datasets::channels, b.row(y)));
}

}  // namespace

std::vector<std::string> seeds() {
  std::vector<std::string> files;
  for (const auto& [name, kind] : test::jpeg_kinds())
    files.push_back(test::jpeg_file(35, 20, kind));
  for (const auto& [name, kind] : test::png_kinds()) files.push_back(test::png_file(17, 9, kind));
  for (const auto& [name, is_lossless] : test::webp_kinds())
    files.push_back(test::webp_file(23, 11, is_lossless));
  using namespace std::string_literals;
  files.push_back("P6\n3 2\n255\nabcdefghijklmnopqr");
  files.push_back("P3 2 1 # two\n7 1 2 3 4 5 6 ");
  files.push_back("P5 2 2 300 abcdefgh");
  files.push_back("P4 9 2\nabcd");
  files.push_back("P1 3 2 101010");
  files.push_back("GIF89a\3\0\2\0\x82\0\0"s + std::string(24, 'c') +
                  "!\xf9\4\1\0\0\1\0,\0\0\0\0\3\0\2\0\x40\3\4\x08\x21\x43\x95\0;"s);
  const auto bmp = [](char bits, char compression, std::size_t colors, std::size_t data) {
    return "BM........"s + static_cast<char>(54 + 4 * colors) +
           "\0\0\0\x28\0\0\0\5\0\0\0\3\0\0\0\1\0"s + bits + '\0' + compression +
           std::string(15, '\0') + static_cast<char>(colors) + std::string(7, '\0') +
           std::string(4 * colors, 'p') + std::string(data, '\3');
  };
  for (const auto& [bits, colors] : {std::pair{1, 2}, {4, 3}, {8, 3}, {16, 0}, {24, 0}, {32, 0}})
    files.push_back(bmp(static_cast<char>(bits), 0, static_cast<std::size_t>(colors), 60));
  files.push_back(bmp(8, 1, 3, 60));
  files.push_back(bmp(4, 2, 3, 60));
  for (std::string& file : files) file.insert(0, "\5\7");
  return files;
}

}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::fuzz;
  if (size < 2) return 0;
  const std::span file(data + 2, size - 2);
  const auto whole = decode(file, [](const lockstep::ImageSize& all) {
    return Region{.left = 0, .top = 0, .size = all};
  });
  std::optional<Region> chosen;
  const auto part = decode(file, [&](const lockstep::ImageSize& all) {
    chosen = region(all, data[0], data[1]);
    return *chosen;
  });
  // An undamaged image has no damaged part.
  if (whole) expect(part.has_value());
  if (whole && part) expect_same(part->view(), whole->view().part(*chosen));
  return 0;
}
