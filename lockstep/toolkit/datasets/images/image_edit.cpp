// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/images/image_edit.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/toolkit/datasets/images/pixel_operations.h"

namespace lockstep::datasets {

ImageEdit::ImageEdit(ImageReader& source, PixelMemory& memory)
    : source_(source),
      pixels_(&memory.pixels),
      spare_(&memory.spare),
      window_{.size = source.size()} {}

void ImageEdit::crop(const Region& part) {
  const ImageSize whole = size();
  if (part.left < 0 || part.top < 0 || part.right() > whole.width || part.bottom() > whole.height) {
    pad(part);
    return;
  }
  window_.left += flips_.horizontal ? whole.width - part.right() : part.left;
  window_.top += flips_.vertical ? whole.height - part.bottom() : part.top;
  window_.size = part.size;
}

void ImageEdit::pad(const Region& part) {
  replace([&](const Pixels& from, Pixels& to) {
    to.resize(part.size);
    std::memset(to.data(), 0, static_cast<std::size_t>(bytes_of(part.size)));
    const std::int64_t left = std::max<std::int64_t>(part.left, 0);
    const std::int64_t right = std::min(part.right(), from.size().width);
    const std::int64_t bottom = std::min(part.bottom(), from.size().height);
    for (std::int64_t y = std::max<std::int64_t>(part.top, 0); y < bottom && left < right; ++y)
      std::memcpy(to.row(y - part.top) + (left - part.left) * channels, from.view().at(left, y),
                  static_cast<std::size_t>((right - left) * channels));
  });
}

void ImageEdit::resize(const ImageSize& wanted) {
  if (size() == wanted) return;
  // A very narrow image can become huge.
  if (wanted.height < 1 || wanted.width < 1 || wanted.height > most_pixels / wanted.width)
    throw BadImage("its proportions do not allow the size that a transform asks for");
  decode();
  resize_pixels(pixels_->view().part(window_), wanted, *spare_);
  swap();
}

Pixels& ImageEdit::pixels() {
  decode();
  if (window_ == Region{.size = pixels_->size()} && !flips_.horizontal && !flips_.vertical)
    return *pixels_;
  const PixelView view = pixels_->view().part(window_);
  if (flips_.horizontal || flips_.vertical)
    flip_pixels(view, flips_.horizontal, flips_.vertical, *spare_);
  else
    spare_->copy(view);
  swap();
  flips_ = {};
  return *pixels_;
}

void ImageEdit::write(const ValueTable& values, const at::Tensor& row) {
  decode();
  check(row.dim() == 3 && row.size(0) == channels && row.size(1) == size().height &&
            row.size(2) == size().width,
        "the row of the batch has another size than the image");
  const PixelView view = pixels_->view().part(window_);
  float* const to = row.mutable_data_ptr<float>();
  const std::int64_t step = flips_.horizontal ? -channels : channels;
  const std::int64_t first = flips_.horizontal ? size().width - 1 : 0;
  for (std::int64_t y = 0; y < size().height; ++y) {
    const std::uint8_t* const line = view.at(first, flips_.vertical ? size().height - 1 - y : y);
    for (std::int64_t c = 0; c < channels; ++c) {
      const auto& table = values[static_cast<std::size_t>(c)];
      float* const out = to + c * row.stride(0) + y * row.stride(1);
      const std::int64_t apart = row.stride(2);
      for (std::int64_t x = 0; x < size().width; ++x) out[x * apart] = table[line[x * step + c]];
    }
  }
}

void ImageEdit::decode() {
  if (is_decoded_) return;
  source_.read(window_, *pixels_);
  window_ = {.size = pixels_->size()};
  is_decoded_ = true;
}

void ImageEdit::swap() {
  std::swap(pixels_, spare_);
  window_ = {.size = pixels_->size()};
}

}  // namespace lockstep::datasets
