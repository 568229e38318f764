// Transforms of images, with torchvision's parameters and meaning, joined by |:
//
//   const auto train = RandomResizedCrop(224) | RandomHorizontalFlip() |
//                      Normalize({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225});
//   const auto test = Resize(256) | CenterCrop(224) | Normalize(...);
//
// A chain ends with torchvision's ToTensor(), which is not written: floats from 0 to 1, then those
// of Normalize. All images of a dataset must leave a chain with one size, so that they fit into one
// batch: after Resize(side) add CenterCrop. Decoding, cropping, flips and Normalize are fused: a
// crop at the beginning of a chain also limits decoding.
//
// Arithmetic is Pillow's, on values of 8 bits, as in torchvision's chains of PIL images. Resize
// differs from Pillow's by at most 1, in fewer than one value in a million by 2. Random numbers are
// SampleRandom's, not torchvision's.
//
// Thread safety: transforms are values that do not change.
// Errors: misuse for options out of range, also in |, for anything after Normalize.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

namespace data {
class ImageStep;
struct Normalization;
struct TransformParts;
}  // namespace data

// In pixels, in the order of tensors.
struct ImageSize {
  std::int64_t height = 0;
  std::int64_t width = 0;

  bool operator==(const ImageSize&) const = default;
};

// A chain of steps; copies share them. Without any step, images become floats from 0 to 1.
class LOCKSTEP_API ImageTransform {
 public:
  ImageTransform() = default;

  // First `first`, then `second`.
  friend LOCKSTEP_API ImageTransform operator|(ImageTransform first, const ImageTransform& second);

  // The size of images that leave the chain; empty if it depends on the image.
  std::optional<ImageSize> output_size() const;

 protected:
  explicit ImageTransform(std::shared_ptr<const data::ImageStep> step);
  explicit ImageTransform(const data::Normalization& normalization);

 private:
  friend struct data::TransformParts;

  std::vector<std::shared_ptr<const data::ImageStep>> steps_;
  std::shared_ptr<const data::Normalization> normalization_;
};

// --- Sizes ---------------------------------------------------------------------------------------

struct ResizeOptions {
  // Limit of the longer side, for Resize(side); 0 means none.
  std::int64_t max_size = 0;
};

// Bilinear, with antialiasing.
class LOCKSTEP_API Resize : public ImageTransform {
 public:
  // The shorter side becomes `side`, the longer one keeps the proportions.
  explicit Resize(std::int64_t side, const ResizeOptions& options = {});

  // Exactly this size, whatever the proportions.
  explicit Resize(const ImageSize& size);
};

// A smaller image gets black margins.
class LOCKSTEP_API CenterCrop : public ImageTransform {
 public:
  explicit CenterCrop(std::int64_t side);
  explicit CenterCrop(const ImageSize& size);
};

struct RandomResizedCropOptions {
  // Least and most share of the image's area.
  std::array<double, 2> scale = {0.08, 1.0};

  // Least and most ratio of width to height, drawn uniformly from its logarithms.
  std::array<double, 2> ratio = {3.0 / 4.0, 4.0 / 3.0};
};

// A random part of the image, resized.
class LOCKSTEP_API RandomResizedCrop : public ImageTransform {
 public:
  explicit RandomResizedCrop(std::int64_t side, const RandomResizedCropOptions& options = {});
  explicit RandomResizedCrop(const ImageSize& size, const RandomResizedCropOptions& options = {});
};

// --- Places --------------------------------------------------------------------------------------

class LOCKSTEP_API RandomHorizontalFlip : public ImageTransform {
 public:
  explicit RandomHorizontalFlip(double probability = 0.5);
};

class LOCKSTEP_API RandomVerticalFlip : public ImageTransform {
 public:
  explicit RandomVerticalFlip(double probability = 0.5);
};

struct RandomRotationOptions {
  bool bilinear = false;                         // Otherwise the nearest pixel.
  std::array<std::uint8_t, 3> fill = {0, 0, 0};  // RGB of pixels from outside of the image.
};

// Around the centre, counter-clockwise, into an image of the same size.
class LOCKSTEP_API RandomRotation : public ImageTransform {
 public:
  // Between -degrees and degrees.
  explicit RandomRotation(double degrees, const RandomRotationOptions& options = {});

  // Between the two, in degrees.
  explicit RandomRotation(const std::array<double, 2>& degrees,
                          const RandomRotationOptions& options = {});
};

// --- Colours -------------------------------------------------------------------------------------

// How far a colour changes: an amount, or the least and the most factor.
struct JitterRange {
  JitterRange() = default;
  JitterRange(double around) : amount(around) {}
  JitterRange(double least, double most) : range({least, most}) {}

  double amount = 0;
  std::optional<std::array<double, 2>> range = {};
};

struct ColorJitterOptions {
  // Factors, from max(0, 1 - amount) to 1 + amount. 1 changes nothing.
  JitterRange brightness = {};
  JitterRange contrast = {};
  JitterRange saturation = {};

  // Turns of the colour circle, from -amount to amount; at most half a turn.
  JitterRange hue = {};
};

// Changes what is given, in a random order.
class LOCKSTEP_API ColorJitter : public ImageTransform {
 public:
  explicit ColorJitter(const ColorJitterOptions& options);
};

struct GaussianBlurOptions {
  // Least and most standard deviation, in pixels.
  std::array<double, 2> sigma = {0.1, 2.0};
};

// Mirrors the image at its borders. Errors while an image is transformed: misuse if it is no larger
// than half of the kernel.
class LOCKSTEP_API GaussianBlur : public ImageTransform {
 public:
  // `kernel_size` is odd.
  explicit GaussianBlur(std::int64_t kernel_size, const GaussianBlurOptions& options = {});
};

// The last step: (value - mean) / deviation of each channel, with values from 0 to 1.
class LOCKSTEP_API Normalize : public ImageTransform {
 public:
  Normalize(const std::array<double, 3>& mean, const std::array<double, 3>& deviation);
};

}  // namespace lockstep
