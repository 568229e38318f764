// One image in a chain of transforms. Defers work: an early crop limits decoding, and write()
// flips.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "lockstep/toolkit/datasets/images/image_reader.h"
#include "lockstep/toolkit/datasets/images/pixels.h"

namespace lockstep::datasets {

using ValueTable = std::array<std::array<float, 256>, channels>;

// One thread's.
struct PixelMemory {
  Pixels pixels;
  Pixels spare;
};

class ImageEdit {
 public:
  // Lifetime: `source` and `memory` outlive it.
  ImageEdit(ImageReader& source, PixelMemory& memory);

  // After the changes so far.
  const ImageSize& size() const { return window_.size; }

  // Parts outside of the image become black.
  void crop(const Region& part);

  void resize(const ImageSize& size);
  void flip_horizontally() { flips_.horizontal = !flips_.horizontal; }
  void flip_vertically() { flips_.vertical = !flips_.vertical; }

  // For changes in place.
  Pixels& pixels();

  // change(from, to) writes new pixels to `to`.
  template <class Change>
  void replace(Change change) {
    const Pixels& from = pixels();
    change(from, *spare_);
    swap();
  }

  // Writes floats into `row` [channels, height, width] with any strides.
  void write(const ValueTable& values, const at::Tensor& row);

 private:
  struct Flips {
    bool horizontal = false;
    bool vertical = false;
  };

  void decode();
  void pad(const Region& part);
  void swap();

  ImageReader& source_;
  Pixels* pixels_;
  Pixels* spare_;
  bool is_decoded_ = false;
  Region window_;  // The visible region before the flips.
  Flips flips_;
};

}  // namespace lockstep::datasets
