// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <memory>
#include <span>

#include "lockstep/toolkit/datasets/images/image_reader.h"

#ifdef LOCKSTEP_WITH_WEBP

#include <webp/decode.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <string_view>

#include "lockstep/toolkit/datasets/images/byte_reader.h"
#include "lockstep/toolkit/datasets/images/claimed_size.h"

namespace lockstep::datasets {
namespace {

constexpr std::size_t riff_header = 8;  // "RIFF", and the following size.

// In a RIFF file: four letters, length, data, padding to an even length.
struct Chunk {
  std::string_view name;
  std::span<const std::uint8_t> data;
  std::span<const std::uint8_t> all;  // With name and length.
};

Chunk next_chunk(ByteReader& reader, std::span<const std::uint8_t> bytes) {
  const std::size_t begin = reader.position();
  const auto name = reader.take(4);
  const std::size_t length = reader.u32();
  const auto data = reader.take(length);
  const auto all = bytes.subspan(begin, reader.position() - begin);
  if (length % 2 != 0 && reader.left() > 0) reader.take(1);
  return {{reinterpret_cast<const char*>(name.data()), name.size()}, data, all};
}

// First frame of an animation (RFC 9649, 2.7.1.1).
struct Frame {
  Region place;                             // On the canvas.
  std::span<const std::uint8_t> bitstream;  // Chunk "VP8 " or "VP8L", for libwebp.
};

Frame read_frame(std::span<const std::uint8_t> data) {
  ByteReader reader(data);
  Frame frame;
  frame.place.left = 2 * static_cast<std::int64_t>(reader.u24());
  frame.place.top = 2 * static_cast<std::int64_t>(reader.u24());
  frame.place.size.width = static_cast<std::int64_t>(reader.u24()) + 1;
  frame.place.size.height = static_cast<std::int64_t>(reader.u24()) + 1;
  reader.take(4);  // Duration, and how the canvas changes.
  while (reader.left() > 0)
    if (const Chunk chunk = next_chunk(reader, data); chunk.name.starts_with("VP8")) {
      frame.bitstream = chunk.all;
      return frame;
    }
  throw BadImage("a damaged WebP image: a frame without pixels");
}

Frame first_frame(std::span<const std::uint8_t> bytes) {
  ByteReader reader(bytes);
  reader.seek(riff_header + 4);  // Behind "WEBP".
  while (reader.left() > 0)
    if (const Chunk chunk = next_chunk(reader, bytes); chunk.name == "ANMF")
      return read_frame(chunk.data);
  throw BadImage("a damaged WebP image: an animation without a frame");
}

Region intersection(const Region& a, const Region& b) {
  const std::int64_t left = std::max(a.left, b.left), top = std::max(a.top, b.top);
  return {.left = left,
          .top = top,
          .size = {std::max<std::int64_t>(std::min(a.bottom(), b.bottom()) - top, 0),
                   std::max<std::int64_t>(std::min(a.right(), b.right()) - left, 0)}};
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
    // The library decodes truncated files as far as possible: require all bytes.
    ByteReader reader(bytes);
    reader.seek(4);
    const std::size_t length = reader.u32();
    reader.take(length);
    WebPBitstreamFeatures features;
    require_valid(WebPGetFeatures(bytes.data(), bytes.size(), &features));
    size_ = {features.height, features.width};
    require_possible(size_, bytes.size());
    place_.size = size_;
    if (features.has_animation != 0) open_animation();
  }

  const ImageSize& size() const override { return size_; }

  // The canvas around an animation's first frame is black.
  void read(const Region& region, Pixels& to) override {
    const Region visible = intersection(region, place_);
    if (visible == region) return decode(relative(region), to);
    to.resize(region.size);
    std::memset(to.data(), 0, static_cast<std::size_t>(bytes_of(region.size)));
    if (visible.size.width == 0 || visible.size.height == 0) return;
    Pixels part;
    decode(relative(visible), part);
    for (std::int64_t y = 0; y < visible.size.height; ++y)
      std::memcpy(to.row(visible.top - region.top + y) + channels * (visible.left - region.left),
                  part.row(y), static_cast<std::size_t>(visible.size.width * channels));
  }

 private:
  void open_animation() {
    const Frame frame = first_frame(bytes_);
    WebPBitstreamFeatures features;
    require_valid(WebPGetFeatures(frame.bitstream.data(), frame.bitstream.size(), &features));
    if (ImageSize{features.height, features.width} != frame.place.size ||
        frame.place.right() > size_.width || frame.place.bottom() > size_.height)
      throw BadImage("a damaged WebP image: a frame that does not fit");
    place_ = frame.place;
    bytes_ = frame.bitstream;
  }

  // To the decoded picture.
  Region relative(const Region& region) const {
    return {.left = region.left - place_.left, .top = region.top - place_.top, .size = region.size};
  }

  // The library treats a crop's edges as image edges when it upsamples colours of half the
  // resolution. Such pixels are not used.
  void decode(const Region& region, Pixels& to) const {
    constexpr std::int64_t edge = 2;
    const std::int64_t left = std::max<std::int64_t>(region.left - edge, 0) / 2 * 2;
    const std::int64_t top = std::max<std::int64_t>(region.top - edge, 0) / 2 * 2;
    const ImageSize size{std::min(region.bottom() + edge, place_.size.height) - top,
                         std::min(region.right() + edge, place_.size.width) - left};
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

  std::span<const std::uint8_t> bytes_;  // The decoded picture.
  ImageSize size_;
  Region place_;  // On the canvas.
};

}  // namespace

std::unique_ptr<ImageReader> read_webp(std::span<const std::uint8_t> bytes) {
  return std::make_unique<WebpReader>(bytes);
}

}  // namespace lockstep::datasets

#else

namespace lockstep::datasets {

std::unique_ptr<ImageReader> read_webp(std::span<const std::uint8_t>) {
  throw BadImage("a WebP image, and this copy of Lockstep was built without libwebp");
}

}  // namespace lockstep::datasets

#endif
