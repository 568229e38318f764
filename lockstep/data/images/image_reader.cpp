// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/images/image_reader.h"

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::data {
namespace {

// The first bytes of formats that torchvision lists, but this library does not decode.
struct Foreign {
  std::string_view magic;
  std::string_view name;
};
constexpr std::array<Foreign, 8> foreign{{{"BM", "BMP"},
                                          {"P2", "PGM"},
                                          {"P3", "PPM"},
                                          {"P5", "PGM"},
                                          {"P6", "PPM"},
                                          {"II*", "TIFF"},
                                          {"MM", "TIFF"},
                                          {"GIF8", "GIF"}}};

}  // namespace

std::unique_ptr<ImageReader> read_image(std::span<const std::uint8_t> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with("\xff\xd8")) return read_jpeg(bytes);
  if (text.starts_with("\x89PNG")) return read_png(bytes);
  if (text.starts_with("RIFF") && text.substr(0, 12).ends_with("WEBP")) return read_webp(bytes);
  if (text.empty()) throw BadImage("the file is empty");
  for (const Foreign& format : foreign)
    if (text.starts_with(format.magic))
      throw BadImage("a " + std::string(format.name) + " image, neither JPEG, PNG nor WebP");
  throw BadImage("neither a JPEG, a PNG nor a WebP image");
}

}  // namespace lockstep::data
