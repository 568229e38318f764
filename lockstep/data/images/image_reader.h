// Decoders of JPEG, PNG, WebP, GIF, BMP and PNM images, of animations their first frame. Pixels are
// those of Pillow's convert("RGB"), bit for bit.
//
// Bytes may be hostile: sizes are compared with limits, and with the bytes that are there, before
// memory of a claimed size is allocated.
// Errors: BadImage.

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

// The bytes are no image, a damaged one, or one of a kind that is not supported. The text has the
// reason.
class BadImage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Limit of width times height: the one at which Pillow raises DecompressionBombError.
inline constexpr std::int64_t most_pixels = 178'956'970;

// An image whose header was read: its size is known, its pixels need not be decoded yet.
class ImageReader {
 public:
  virtual ~ImageReader() = default;

  virtual const ImageSize& size() const = 0;

  // Decodes a region, without the rows and columns around it as far as the format allows. Damage
  // behind the region stays unnoticed. Call it once.
  virtual void read(const Region& region, Pixels& to) = 0;

  // After read(): the first flaw of the file in spite of which all pixels were decoded; empty if
  // there is none.
  virtual std::string flaw() const { return {}; }
};

// Reads the header of an image, whose first bytes determine its format. `bytes` must outlive the
// reader.
std::unique_ptr<ImageReader> read_image(std::span<const std::uint8_t> bytes);

// One for each format.
std::unique_ptr<ImageReader> read_jpeg(std::span<const std::uint8_t> bytes);
std::unique_ptr<ImageReader> read_png(std::span<const std::uint8_t> bytes);
std::unique_ptr<ImageReader> read_webp(std::span<const std::uint8_t> bytes);
std::unique_ptr<ImageReader> read_gif(std::span<const std::uint8_t> bytes);
std::unique_ptr<ImageReader> read_bmp(std::span<const std::uint8_t> bytes);
std::unique_ptr<ImageReader> read_pnm(std::span<const std::uint8_t> bytes);

// Why no file that begins with these bytes, 12 or all, can be decoded; empty if one may be.
std::string why_not_decodable(std::span<const std::uint8_t> beginning);

// Whether files of the format that this extension of torchvision's ImageFolder, such as ".jpg",
// stands for can be decoded. Not so for TIFF, and for WebP in a build without libwebp.
bool has_decoder(std::string_view extension);

// Reads decoded pixels, which must outlive the reader.
class PixelReader final : public ImageReader {
 public:
  explicit PixelReader(const PixelView& pixels) : pixels_(pixels) {}

  const ImageSize& size() const override { return pixels_.size; }
  void read(const Region& region, Pixels& to) override { to.copy(pixels_.part(region)); }

 private:
  PixelView pixels_;
};

}  // namespace lockstep::data
