// Pixels in memory: RGB, one byte per channel, row-major.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "lockstep/toolkit/datasets/images/image_transforms.h"

namespace lockstep::datasets {

inline constexpr std::int64_t channels = 3;

struct Region {
  std::int64_t left = 0;
  std::int64_t top = 0;
  ImageSize size;

  std::int64_t right() const { return left + size.width; }
  std::int64_t bottom() const { return top + size.height; }
  bool operator==(const Region&) const = default;
};

inline std::int64_t bytes_of(const ImageSize& size) { return size.height * size.width * channels; }

// Does not own the pixels.
struct PixelView {
  const std::uint8_t* data = nullptr;
  ImageSize size;
  std::ptrdiff_t stride = 0;  // Distance of rows, in bytes.

  const std::uint8_t* row(std::int64_t y) const { return data + y * stride; }
  const std::uint8_t* at(std::int64_t x, std::int64_t y) const { return row(y) + x * channels; }

  PixelView part(const Region& region) const {
    return {at(region.left, region.top), region.size, stride};
  }
};

// Contiguous rows. The memory only grows.
class Pixels {
 public:
  // Values become undefined.
  void resize(const ImageSize& size) {
    const auto bytes = static_cast<std::size_t>(bytes_of(size));
    if (bytes > capacity_) {
      memory_ = std::make_unique_for_overwrite<std::uint8_t[]>(bytes);
      capacity_ = bytes;
    }
    size_ = size;
  }

  const ImageSize& size() const { return size_; }
  std::uint8_t* data() { return memory_.get(); }
  std::uint8_t* row(std::int64_t y) { return memory_.get() + y * size_.width * channels; }
  PixelView view() const { return {memory_.get(), size_, size_.width * channels}; }

  void copy(const PixelView& from) {
    resize(from.size);
    for (std::int64_t y = 0; y < size_.height; ++y)
      std::memcpy(row(y), from.row(y), static_cast<std::size_t>(size_.width * channels));
  }

 private:
  std::unique_ptr<std::uint8_t[]> memory_;
  std::size_t capacity_ = 0;
  ImageSize size_;
};

}  // namespace lockstep::datasets
