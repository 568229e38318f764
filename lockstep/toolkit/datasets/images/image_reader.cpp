// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/images/image_reader.h"

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/file_format.h"

namespace lockstep::datasets {
namespace {

using Read = std::unique_ptr<ImageReader> (*)(std::span<const std::uint8_t>);

// By first bytes. Without `read`, torchvision supports the format, but Lockstep does not.
struct Format {
  std::string_view magic;
  std::string_view name;
  Read read = nullptr;
};

#ifdef LOCKSTEP_WITH_WEBP
constexpr bool has_webp = true;
#else
constexpr bool has_webp = false;
#endif

constexpr std::array<Format, 14> formats{{{"\xff\xd8", "JPEG", read_jpeg},
                                          {"\x89PNG", "PNG", read_png},
                                          {"GIF87a", "GIF", read_gif},
                                          {"GIF89a", "GIF", read_gif},
                                          {"BM", "BMP", read_bmp},
                                          {"P1", "PBM", read_pnm},
                                          {"P2", "PGM", read_pnm},
                                          {"P3", "PPM", read_pnm},
                                          {"P4", "PBM", read_pnm},
                                          {"P5", "PGM", read_pnm},
                                          {"P6", "PPM", read_pnm},
                                          {"II*", "TIFF"},
                                          {"II+", "TIFF"},
                                          {"MM", "TIFF"}}};

std::string_view text_of(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool is_webp(std::string_view text) {
  return text.starts_with("RIFF") && text.substr(0, 12).ends_with("WEBP");
}

const Format* format_of(std::string_view text) {
  for (const Format& format : formats)
    if (text.starts_with(format.magic)) return &format;
  return nullptr;
}

}  // namespace

std::string why_not_decodable(std::span<const std::uint8_t> beginning) {
  const std::string_view text = text_of(beginning);
  if (text.empty()) return "the file is empty";
  if (is_webp(text)) {
    return has_webp ? "" : "a WebP image, and this copy of Lockstep was built without libwebp";
  }
  const Format* const format = format_of(text);
  if (format == nullptr) return "neither a JPEG, PNG, WebP, GIF, BMP nor PNM image";
  if (format->read != nullptr) return {};
  return "a " + std::string(format->name) + " image, neither JPEG, PNG, WebP, GIF, BMP nor PNM";
}

bool has_decoder(std::string_view extension) {
  if (extension == ".webp") return has_webp;
  return extension != ".tif" && extension != ".tiff";
}

std::unique_ptr<ImageReader> read_image(std::span<const std::uint8_t> bytes) {
  const std::string_view text = text_of(bytes);
  if (const std::string reason = why_not_decodable(bytes); !reason.empty()) {
    const auto format = file_format_of(std::as_bytes(bytes));
    throw BadImage(format ? reason + ", but " + describe(*format) : reason);
  }
  return is_webp(text) ? read_webp(bytes) : format_of(text)->read(bytes);
}

}  // namespace lockstep::datasets
