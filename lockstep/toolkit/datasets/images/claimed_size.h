// Limits for the sizes in image headers, checked before memory is allocated. Errors: BadImage.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/toolkit/datasets/images/image_reader.h"

namespace lockstep::datasets {

inline std::string text_of(const ImageSize& size) {
  return std::to_string(size.width) + " x " + std::to_string(size.height);
}

// Rejects images without pixels, or with too many for a file of `bytes` bytes.
inline void require_possible(const ImageSize& size, std::size_t bytes) {
  if (size.width <= 0 || size.height <= 0)
    throw BadImage("an image without pixels: " + text_of(size));
  if (size.width > most_pixels / size.height) throw BadImage("too many pixels: " + text_of(size));
  const std::int64_t pixels = size.width * size.height;
  if (pixels > pixels_of_any_file && pixels / pixels_for_one >= static_cast<std::int64_t>(bytes))
    throw BadImage("claims " + text_of(size) + " pixels, too many for a file of " +
                   std::to_string(bytes) + " bytes");
}

// `least_bytes`: the image's size at the format's highest compression. `bytes`: the file's.
inline void require_held(const ImageSize& size, std::int64_t least_bytes, std::size_t bytes) {
  if (least_bytes > static_cast<std::int64_t>(bytes))
    throw BadImage("claims " + text_of(size) + " pixels, more than its bytes can hold");
}

}  // namespace lockstep::datasets
