// F10: JPEG, PNG and WebP files, with arbitrary input. Nothing but a BadImage may come out. A
// region that is decoded has the pixels that it has in the whole image, if that can be decoded,
// too. The first two bytes choose the region.

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/images/image_reader.h"
#include "tests/fuzz/target.h"
#include "tests/rigs/sample_images.h"

namespace lockstep::fuzz {
namespace {

using data::ImageReader;
using data::Pixels;
using data::Region;

// Larger images than this take their time, and show nothing new.
constexpr std::int64_t most_pixels_to_decode = 1 << 20;

template <class Choose>
std::optional<Pixels> decode(std::span<const std::uint8_t> file, Choose choose) {
  try {
    const auto reader = data::read_image(file);
    const ImageSize& size = reader->size();
    expect(size.height > 0 && size.width > 0);
    if (size.height * size.width > most_pixels_to_decode) return std::nullopt;
    Pixels pixels;
    reader->read(choose(size), pixels);
    return pixels;
  } catch (const data::BadImage&) {
    return std::nullopt;
  }
}

Region region(const ImageSize& size, std::uint8_t left, std::uint8_t top) {
  Region part{.left = left % size.width, .top = top % size.height, .size = {}};
  part.size = {(size.height - part.top + 1) / 2, (size.width - part.left + 1) / 2};
  return part;
}

void expect_same(const data::PixelView& a, const data::PixelView& b) {
  for (std::int64_t y = 0; y < a.size.height; ++y)
    expect(std::equal(a.row(y), a.row(y) + a.size.width * data::channels, b.row(y)));
}

}  // namespace

std::vector<std::string> seeds() {
  std::vector<std::string> files;
  for (const auto& [name, kind] : test::jpeg_kinds())
    files.push_back(test::jpeg_file(35, 20, kind));
  for (const auto& [name, kind] : test::png_kinds()) files.push_back(test::png_file(17, 9, kind));
  for (const auto& [name, is_lossless] : test::webp_kinds())
    files.push_back(test::webp_file(23, 11, is_lossless));
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
