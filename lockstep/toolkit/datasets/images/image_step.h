// One step of a chain of transforms.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>

#include "lockstep/data/batch_dataset.h"
#include "lockstep/toolkit/datasets/images/image_edit.h"
#include "lockstep/toolkit/datasets/images/image_transforms.h"

namespace lockstep::datasets {

// Thread safety: any thread may call any member.
class ImageStep {
 public:
  virtual ~ImageStep() = default;

  virtual void apply(ImageEdit& image, SampleRandom& random) const = 0;

  // Empty if the size depends on the image.
  virtual std::optional<ImageSize> size_after(const std::optional<ImageSize>& before) const = 0;
};

struct Normalization {
  std::array<double, channels> mean;
  std::array<double, channels> deviation;
};

struct TransformParts {
  static void apply(const ImageTransform& transform, ImageEdit& image, SampleRandom& random);

  // ToTensor() and Normalize: torchvision's float operations in their order.
  static ValueTable values(const ImageTransform& transform);
};

}  // namespace lockstep::datasets
