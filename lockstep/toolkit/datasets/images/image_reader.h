// Decoders of the formats in decoded_images.h.
//
// Input is untrusted: claimed sizes are checked before memory is allocated. Errors: BadImage.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "lockstep/toolkit/datasets/images/pixels.h"

namespace lockstep::datasets {

// The bytes are no image, or a damaged or unsupported one. what() has the reason.
class BadImage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Most pixels of an image, as in Pillow, which raises DecompressionBombError beyond.
inline constexpr std::int64_t most_pixels = 178'956'970;

// An image may have pixels_of_any_file pixels (48 MiB of RGB) or, if more, pixels_for_one per byte
// of file: small files take little memory. The latter is PNG's highest compression: 1032 bytes per
// byte of deflate, with 8 pixels each. Few images of other formats compress more.
inline constexpr std::int64_t pixels_of_any_file = 1 << 24;
inline constexpr std::int64_t pixels_for_one = 1032 * 8;

// Reads a header at construction, and pixels on demand.
class ImageReader {
 public:
  virtual ~ImageReader() = default;

  virtual const ImageSize& size() const = 0;

  // Decodes a region, and as little else as the format allows: damage behind the region may stay
  // undetected. Call it at most once.
  virtual void read(const Region& region, Pixels& to) = 0;

  // After read(): the first flaw that left all pixels decodable, or empty.
  virtual std::string flaw() const { return {}; }
};

// Detects the format by the first bytes. Lifetime: `bytes` outlive the reader.
std::unique_ptr<ImageReader> read_image(std::span<const std::uint8_t> bytes);

std::unique_ptr<ImageReader> read_jpeg(std::span<const std::uint8_t> bytes);
std::unique_ptr<ImageReader> read_png(std::span<const std::uint8_t> bytes);
std::unique_ptr<ImageReader> read_webp(std::span<const std::uint8_t> bytes);
std::unique_ptr<ImageReader> read_gif(std::span<const std::uint8_t> bytes);
std::unique_ptr<ImageReader> read_bmp(std::span<const std::uint8_t> bytes);
std::unique_ptr<ImageReader> read_pnm(std::span<const std::uint8_t> bytes);

// Empty if the file may be decodable. `beginning`: its first 12 bytes, or all of a shorter file.
std::string why_not_decodable(std::span<const std::uint8_t> beginning);

// For an extension such as ".jpg", of torchvision's. False for TIFF, and WebP without libwebp.
bool has_decoder(std::string_view extension);

// Reads from decoded pixels, which outlive it.
class PixelReader final : public ImageReader {
 public:
  explicit PixelReader(const PixelView& pixels) : pixels_(pixels) {}

  const ImageSize& size() const override { return pixels_.size; }
  void read(const Region& region, Pixels& to) override { to.copy(pixels_.part(region)); }

 private:
  PixelView pixels_;
};

}  // namespace lockstep::datasets
