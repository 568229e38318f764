// Decoders of JPEG, PNG, WebP, GIF, BMP and PNM images; of animations, the first frame. Pixels
// equal those of Pillow's convert("RGB"), bit for bit.
//
// The input is not trusted: claimed sizes are checked before memory is allocated. Errors: BadImage.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "lockstep/data/images/pixels.h"

namespace lockstep::data {

// Not an image, or a damaged or unsupported one. what() has the reason.
class BadImage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Limit of width times height, as in Pillow.
inline constexpr std::int64_t most_pixels = 178'956'970;

// An image of more than pixels_of_any_file (48 MiB of RGB) may have at most this many pixels per
// byte of its file. Small files thus take little memory. This is the highest compression of PNG:
// 1032 bytes per byte of deflate, with 8 pixels each. Few images of other formats compress more.
inline constexpr std::int64_t pixels_of_any_file = 1 << 24;
inline constexpr std::int64_t pixels_for_one = 1032 * 8;

// Reads a header at construction, and pixels on demand.
class ImageReader {
 public:
  virtual ~ImageReader() = default;

  virtual const ImageSize& size() const = 0;

  // Decodes a region, and as little else as the format allows. Damage behind the region is not
  // detected. Call it at most once.
  virtual void read(const Region& region, Pixels& to) = 0;

  // After read(): the first flaw of the file that left all pixels decodable, or empty.
  virtual std::string flaw() const { return {}; }
};

// Detects the format by the first bytes. `bytes` must outlive the reader.
std::unique_ptr<ImageReader> read_image(std::span<const std::uint8_t> bytes);

std::unique_ptr<ImageReader> read_jpeg(std::span<const std::uint8_t> bytes);
std::unique_ptr<ImageReader> read_png(std::span<const std::uint8_t> bytes);
std::unique_ptr<ImageReader> read_webp(std::span<const std::uint8_t> bytes);
std::unique_ptr<ImageReader> read_gif(std::span<const std::uint8_t> bytes);
std::unique_ptr<ImageReader> read_bmp(std::span<const std::uint8_t> bytes);
std::unique_ptr<ImageReader> read_pnm(std::span<const std::uint8_t> bytes);

// Empty if the file may be decodable. `beginning` has its first 12 bytes, or all of a shorter file.
std::string why_not_decodable(std::span<const std::uint8_t> beginning);

// For an extension of torchvision's ImageFolder, such as ".jpg". False for TIFF, and for WebP in a
// build without libwebp.
bool has_decoder(std::string_view extension);

// Reads from decoded pixels, which must outlive it.
class PixelReader final : public ImageReader {
 public:
  explicit PixelReader(const PixelView& pixels) : pixels_(pixels) {}

  const ImageSize& size() const override { return pixels_.size; }
  void read(const Region& region, Pixels& to) override { to.copy(pixels_.part(region)); }

 private:
  PixelView pixels_;
};

}  // namespace lockstep::data
