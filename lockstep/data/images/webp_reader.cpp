// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <memory>
#include <span>

#include "lockstep/data/images/image_reader.h"

#ifdef LOCKSTEP_WITH_WEBP

#include <webp/decode.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

namespace lockstep::data {
namespace {

constexpr std::size_t riff_header = 8;  // "RIFF", and the number of bytes that follow.

std::size_t little_endian(std::span<const std::uint8_t, 4> bytes) {
  std::size_t value = 0;
  for (std::size_t i = bytes.size(); i > 0; --i) value = value << 8 | bytes[i - 1];
  return value;
}

void require_valid(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_OK:
      return;
    case VP8_STATUS_OUT_OF_MEMORY:
      throw std::bad_alloc();
    case VP8_STATUS_SUSPENDED:
    case VP8_STATUS_NOT_ENOUGH_DATA:
      throw BadImage("the file ends too early");
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      throw BadImage("a WebP image of an unknown kind");
    default:
      throw BadImage("a damaged WebP image");
  }
}

class WebpReader final : public ImageReader {
 public:
  explicit WebpReader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {
    // The library decodes a file that lacks its end, as far as it goes.
    if (bytes.size() < riff_header ||
        bytes.size() - riff_header < little_endian(bytes.subspan<4, 4>()))
      throw BadImage("the file ends too early");
    WebPBitstreamFeatures features;
    require_valid(WebPGetFeatures(bytes.data(), bytes.size(), &features));
    if (features.has_animation != 0) throw BadImage("an animated WebP image");
    size_ = {features.height, features.width};
    if (size_.height * size_.width > most_pixels)
      throw BadImage("too many pixels: " + std::to_string(size_.width) + " x " +
                     std::to_string(size_.height));
  }

  const ImageSize& size() const override { return size_; }

  // The library takes pixels at the edge of a crop for the last ones of the image when it makes
  // colours of half the resolution whole: these are not used.
  void read(const Region& region, Pixels& to) override {
    constexpr std::int64_t edge = 2;
    const std::int64_t left = std::max<std::int64_t>(region.left - edge, 0) / 2 * 2;
    const std::int64_t top = std::max<std::int64_t>(region.top - edge, 0) / 2 * 2;
    const ImageSize size{std::min(region.bottom() + edge, size_.height) - top,
                         std::min(region.right() + edge, size_.width) - left};
    Pixels decoded;
    decoded.resize(size);
    WebPDecoderConfig config;
    if (WebPInitDecoderConfig(&config) == 0) throw BadImage("another version of libwebp runs");
    config.options.use_cropping = 1;
    config.options.crop_left = static_cast<int>(left);
    config.options.crop_top = static_cast<int>(top);
    config.options.crop_width = static_cast<int>(size.width);
    config.options.crop_height = static_cast<int>(size.height);
    config.output.colorspace = MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA = {.rgba = decoded.data(),
                            .stride = static_cast<int>(size.width * channels),
                            .size = static_cast<std::size_t>(bytes_of(size))};
    require_valid(WebPDecode(bytes_.data(), bytes_.size(), &config));
    to.copy(decoded.view().part(
        {.left = region.left - left, .top = region.top - top, .size = region.size}));
  }

 private:
  const std::span<const std::uint8_t> bytes_;
  ImageSize size_;
};

}  // namespace

std::unique_ptr<ImageReader> read_webp(std::span<const std::uint8_t> bytes) {
  return std::make_unique<WebpReader>(bytes);
}

}  // namespace lockstep::data

#else

namespace lockstep::data {

std::unique_ptr<ImageReader> read_webp(std::span<const std::uint8_t>) {
  throw BadImage("a WebP image, and this copy of Lockstep was built without libwebp");
}

}  // namespace lockstep::data

#endif
