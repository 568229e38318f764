// One image on its way through a chain of transforms. Work is put off: a crop before anything else
// limits what is decoded, and flips happen while values are written into the batch.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "lockstep/data/images/image_reader.h"
#include "lockstep/data/images/pixels.h"

namespace lockstep::data {

// The float that each value of each channel becomes.
using ValueTable = std::array<std::array<float, 256>, channels>;

// Memory of one thread for all of its images.
struct PixelMemory {
  Pixels pixels;
  Pixels spare;
};

class ImageEdit {
 public:
  // Begins with all of the image. `source` and `memory` must outlive this object.
  ImageEdit(ImageReader& source, PixelMemory& memory);

  // As all changes so far leave it.
  const ImageSize& size() const { return window_.size; }

  // Keeps a part, which may lie partly outside of the image: it is black there.
  void crop(const Region& part);

  void resize(const ImageSize& size);
  void flip_horizontally() { flips_.horizontal = !flips_.horizontal; }
  void flip_vertically() { flips_.vertical = !flips_.vertical; }

  // The pixels, to be changed in place.
  Pixels& pixels();

  // Calls change(from, to), which makes other pixels of these.
  template <class Change>
  void replace(Change change) {
    const Pixels& from = pixels();
    change(from, *spare_);
    swap();
  }

  // Writes floats into `row` [channels, height, width] of any strides.
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
  Region window_;  // The part of the source, or of the pixels, that is kept; as before the flips.
  Flips flips_;
};

}  // namespace lockstep::data
