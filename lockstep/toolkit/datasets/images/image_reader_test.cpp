// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/images/image_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/memory_limit.h"
#include "tests/rigs/sample_images.h"

namespace lockstep::datasets::image_reader_test {
namespace {

using namespace std::string_literals;

std::span<const std::uint8_t> bytes_of(const std::string& file) {
  return {reinterpret_cast<const std::uint8_t*>(file.data()), file.size()};
}

Pixels decode(const std::string& file, const Region& region) {
  Pixels pixels;
  read_image(bytes_of(file))->read(region, pixels);
  return pixels;
}

Pixels decode(const std::string& file) {
  return decode(file, {.size = read_image(bytes_of(file))->size()});
}

std::string refusal(const std::string& file) {
  try {
    decode(file);
  } catch (const BadImage& bad) {
    return bad.what();
  }
  ADD_FAILURE() << "the image was decoded";
  return "";
}

bool is_same(const PixelView& a, const PixelView& b) {
  if (a.size != b.size) return false;
  for (std::int64_t y = 0; y < a.size.height; ++y)
    if (!std::equal(a.row(y), a.row(y) + a.size.width * channels, b.row(y))) return false;
  return true;
}

// Sizes are not multiples of blocks.
std::vector<std::pair<std::string, std::string>> all_files(int width, int height) {
  std::vector<std::pair<std::string, std::string>> files;
  for (const auto& [name, kind] : test::jpeg_kinds())
    files.emplace_back("JPEG " + name, test::jpeg_file(width, height, kind));
  for (const auto& [name, kind] : test::png_kinds())
    files.emplace_back("PNG " + name, test::png_file(width, height, kind));
  for (const auto& [name, is_lossless] : test::webp_kinds())
    files.emplace_back("WebP " + name, test::webp_file(width, height, is_lossless));
  return files;
}

std::string changed(std::string file, std::size_t at, const std::string& bytes) {
  return file.replace(at, bytes.size(), bytes);
}

TEST(ImageReader, DecodesARegionToThePixelsThatItHasInTheWholeImage) {
  std::minstd_rand random(1);
  const auto below = [&](std::int64_t count) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(count));
  };
  for (const auto& [name, file] : all_files(173, 131)) {
    const Pixels whole = decode(file);
    for (int attempt = 0; attempt < 100; ++attempt) {
      Region part{.left = below(173), .top = below(131), .size = {}};
      part.size = {1 + below(131 - part.top), 1 + below(173 - part.left)};
      EXPECT_TRUE(is_same(decode(file, part).view(), whole.view().part(part)))
          << name << ": columns " << part.left << " to " << part.right() << ", rows " << part.top
          << " to " << part.bottom();
    }
  }
}

TEST(ImageReader, DecodesAnInterlacedPngAsAnyOther) {
  for (auto [name, kind] : test::png_kinds()) {
    const Pixels one = decode(test::png_file(43, 29, kind));
    kind.interlaced = !kind.interlaced;
    EXPECT_TRUE(is_same(one.view(), decode(test::png_file(43, 29, kind)).view())) << name;
  }
}

TEST(ImageReader, KnowsTheSizeBeforeItDecodes) {
  for (const auto& [name, file] : all_files(61, 7))
    EXPECT_EQ(read_image(bytes_of(file))->size(), (ImageSize{7, 61})) << name;
}

TEST(ImageReader, DecodesImagesOfOnePixel) {
  for (const auto& [name, file] : all_files(1, 1))
    EXPECT_EQ(decode(file).size(), (ImageSize{1, 1})) << name;
}

TEST(ImageReader, RefusesAFileThatEndsAnywhereTooEarly) {
  for (const auto& [name, file] : all_files(40, 33))
    for (std::size_t size = 0; size < file.size(); ++size)
      EXPECT_THROW(decode(file.substr(0, size)), BadImage) << name << ", " << size << " bytes";
}

TEST(ImageReader, RefusesWhatItDoesNotDecodeByName) {
  EXPECT_EQ(refusal(""), "the file is empty");
  EXPECT_EQ(refusal("II*\0"s), "a TIFF image, neither JPEG, PNG, WebP, GIF, BMP nor PNM");
  EXPECT_EQ(refusal("<html>"), "neither a JPEG, PNG, WebP, GIF, BMP nor PNM image, but a text");
  EXPECT_EQ(refusal("RIFF\1\2\3\4WAVE"), "neither a JPEG, PNG, WebP, GIF, BMP nor PNM image");
  if (test::webp_kinds().empty()) {
    EXPECT_EQ(refusal("RIFF....WEBPVP8 "),
              "a WebP image, and this copy of Lockstep was built without libwebp");
    return;
  }
  // An animation (RFC 9649, 2.7: VP8X has its flags first, 0x02 among them) without a frame.
  const std::string animated = "RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\x02\0\0\0\3\0\0\3\0\0"s;
  EXPECT_EQ(refusal(animated), "a damaged WebP image: an animation without a frame");
}

// --- Simple formats ------------------------------------------------------------------------------

// Pixels are bytes 0 to 17, three columns and two rows.
std::vector<std::pair<std::string, std::string>> simple_files() {
  std::string raw, plain = "P3 3 # columns\n2 255\n", rows;
  for (int value = 0; value < 18; ++value) {
    raw += static_cast<char>(value);
    plain += std::to_string(value) + " ";
  }
  // Bottom-up rows of blue, green and red, padded to four bytes.
  for (const std::size_t row : {1, 0}) {
    for (std::size_t x = 0; x < 3; ++x)
      for (std::size_t c = 3; c > 0; --c) rows += raw[9 * row + 3 * x + c - 1];
    rows += "\0\0\0"s;
  }
  const std::string header = "\x28\0\0\0\3\0\0\0\2\0\0\0\1\0\x18\0"s + std::string(24, '\0');
  // Six colours; codes of four bits: clear, 0 to 5, end.
  const std::string gif = "GIF89a\3\0\2\0\x82\0\0"s + raw + std::string(6, '\0') +
                          ",\0\0\0\0\3\0\2\0\0\3\4\x08\x21\x43\x95\0;"s;
  return {{"PPM", "P6\n3 2\n255\n" + raw},
          {"plain PPM", plain},
          {"BMP", "BM" + std::string(8, '\0') + "\x36\0\0\0"s + header + rows},
          {"GIF", gif}};
}

TEST(ImageReader, DecodesSimpleFormats) {
  for (const auto& [name, file] : simple_files()) {
    const Pixels pixels = decode(file);
    ASSERT_EQ(pixels.size(), (ImageSize{2, 3})) << name;
    for (int value = 0; value < 18; ++value)
      EXPECT_EQ(pixels.view().data[value], value) << name << ", " << value;
    const Region part{.left = 1, .top = 1, .size = {1, 2}};
    EXPECT_TRUE(is_same(decode(file, part).view(), pixels.view().part(part))) << name;
  }
}

TEST(ImageReader, RefusesSimpleFormatsThatEndTooEarly) {
  for (const auto& [name, file] : simple_files()) {
    // A GIF needs no bytes after its pixels, and a final number needs no space.
    const std::size_t needed = name == "GIF" ? file.size() - 3 : file.size();
    for (std::size_t size = 0; size + (name == "plain PPM" ? 3 : 1) < needed; ++size)
      EXPECT_THROW(decode(file.substr(0, size)), BadImage) << name << ", " << size << " bytes";
  }
}

TEST(ImageReader, RefusesSimpleFormatsThatClaimMorePixelsThanTheyHold) {
  const test::MemoryLimit limit(64 << 20);
  for (const std::string& file :
       {"P6 9000 9000 255\n..."s, "P3 9000 9000 255 1 1 1"s, "P4 90000 1000\n"s,
        "P6 99999 99999 255\n"s, "P6 0 9 255\n"s,
        "BM........\x36\0\0\0\x28\0\0\0\0\x20\0\0\0\x20\0\0\1\0\x18\0"s + std::string(24, '\0'),
        "GIF89a\xff\xff\xff\xff\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\x08\1\0\0"s,
        "GIF89a\1\0\1\0\0\0\0,\0\0\0\0\xff\x1f\xff\x1f\0\x08\1\0\0"s})
    EXPECT_NE(refusal(file), "");
}

TEST(ImageReader, AllocatesNoMoreThanIsDecodedIfTheDataOfALargeImageEndsTooEarly) {
  const std::string bmp = "BM........\x36\4\0\0\x28\0\0\0\0\x30\0\0\0\x30\0\0\1\0\x08\0\1\0\0\0"s +
                          std::string(20 + 1024, '\0') + std::string(20'000, '\1');
  EXPECT_EQ(decode(changed(bmp, 18, "\2\0\0\0\1\0\0\0"s)).size(), (ImageSize{1, 2}));
  std::string gif = "GIF89a\0\x30\0\x30\0\0\0,\0\0\0\0\0\x30\0\x30\0\x08"s;
  for (int block = 0; block < 250; ++block) gif += "\xff"s + std::string(255, '\0');
  const test::MemoryLimit limit(64 << 20);
  EXPECT_EQ(refusal(bmp), "the file ends too early");
  EXPECT_EQ(refusal(gif), "the file ends too early");
  EXPECT_EQ(refusal(gif.substr(0, 30'000)),
            "claims 12288 x 12288 pixels, more than its bytes can hold");
}

// BMP may skip pixels, and a canvas may exceed its frame.
TEST(ImageReader, RefusesALargeImageInASmallFileOfAnyFormat) {
  const std::string bmp = "BM........\x36\4\0\0\x28\0\0\0\0\x30\0\0\0\x30\0\0\1\0\x08\0\1\0\0\0"s +
                          std::string(20 + 1024, '\0') + "\0\2\xff\xff"s;
  const std::string gif = "GIF89a\0\x30\0\x30\0\0\0,\0\0\0\0\1\0\1\0\0\2\2\x44\1\0;"s;
  const std::string webp = "RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\x02\0\0\0\xff\x2f\0\xff\x2f\0"s;
  std::vector<std::string> files{bmp, gif};
  if (!test::webp_kinds().empty()) files.push_back(webp);
  const test::MemoryLimit limit(64 << 20);
  for (const std::string& file : files)
    EXPECT_EQ(refusal(file), "claims 12288 x 12288 pixels, too many for a file of " +
                                 std::to_string(file.size()) + " bytes");
  EXPECT_EQ(decode(changed(gif, 6, "\0\x10\0\x10"s)).size(), (ImageSize{4096, 4096}));
}

// --- Flaws of JPEG -------------------------------------------------------------------------------

std::string flaw_of(const std::string& file) {
  Pixels pixels;
  const auto reader = read_image(bytes_of(file));
  reader->read({.size = reader->size()}, pixels);
  return reader->flaw();
}

std::string with_inserted(std::string file, std::size_t at, const std::string& bytes) {
  return file.insert(at, bytes);
}

// libjpeg reads up to eight bytes ahead, and does not report these.
TEST(ImageReader, ReadsAJpegWithStrayBytesToTheSamePixels) {
  for (const auto& [name, kind] : test::jpeg_kinds()) {
    const std::string file = test::jpeg_file(61, 47, kind);
    const Pixels pixels = decode(file);
    EXPECT_EQ(flaw_of(file), "") << name;
    for (const std::size_t at : {file.size() - 2, file.find("\xff\xdb"), file.find("\xff\xda")}) {
      const std::string flawed = with_inserted(file, at, std::string(20, 's'));
      EXPECT_TRUE(is_same(decode(flawed).view(), pixels.view())) << name << ", at " << at;
      EXPECT_NE(flaw_of(flawed).find("extraneous bytes before marker"), std::string::npos)
          << name << ", at " << at;
    }
    EXPECT_TRUE(is_same(decode(file + "more").view(), pixels.view())) << name;
  }
}

TEST(ImageReader, TakesStrayBytesBeforeARestartMarkerForDamage) {
  const std::string file = test::jpeg_file(64, 64, {.restart_rows = 1});
  const std::size_t restart = file.find("\xff\xd0");
  ASSERT_NE(restart, std::string::npos);
  EXPECT_NE(refusal(with_inserted(file, restart, std::string(20, 's'))).find("before marker 0xd0"),
            std::string::npos);
}

TEST(ImageReader, TakesAWarningForDamage) {
  std::string file = test::jpeg_file(64, 64);
  const std::size_t middle = file.size() / 2;
  EXPECT_NE(refusal(changed(file, middle, std::string("\xff\xd9", 2))), "");
}

// Behind FF C0: length (2), precision (1), height, width.
TEST(ImageReader, RefusesAJpegThatClaimsMorePixelsThanItCanHold) {
  const std::string file = test::jpeg_file(64, 64);
  const std::size_t size_at = file.find("\xff\xc0") + 5;
  const test::MemoryLimit limit(64 << 20);
  EXPECT_NE(refusal(changed(file, size_at, "\x20\x00\x20\x00"s)).find("8192 x 8192"),
            std::string::npos);
  EXPECT_NE(refusal(changed(file, size_at, "\xff\x00\xff\x00"s)).find("too many pixels"),
            std::string::npos);
}

TEST(ImageReader, RefusesAJpegOfTwelveBitsAndOfTwoComponents) {
  const std::string file = test::jpeg_file(64, 64, {.components = 1});
  const std::size_t frame = file.find("\xff\xc0");
  EXPECT_NE(refusal(changed(file, frame + 4, "\x0c")), "");
  EXPECT_NE(refusal(changed(file, frame + 9, "\x02")), "");
}

}  // namespace
}  // namespace lockstep::datasets::image_reader_test
