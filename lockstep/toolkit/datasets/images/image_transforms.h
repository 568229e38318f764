// Image transforms with torchvision's parameters and meaning, chained by |:
//
//   const auto train = RandomResizedCrop(224) | RandomHorizontalFlip() |
//                      Normalize({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225});
//   const auto test = Resize(256) | CenterCrop(224) | Normalize(...);
//
// A chain implicitly ends with ToTensor(), which gives floats from 0 to 1, before Normalize. A
// chain's output size must not depend on the image: add CenterCrop after Resize(side). A crop at
// the start also limits decoding.
//
// Arithmetic is Pillow's, on 8-bit values. Values of Resize and GaussianBlur differ by at most 1,
// except fewer than one in a million of Resize, by 2. Random numbers are SampleRandom's, not
// torchvision's.
//
// Thread safety: transforms are immutable values.
// Errors: misuse for options out of range, and in | for a step after Normalize.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

namespace datasets {
class ImageStep;
struct Normalization;
struct TransformParts;
}  // namespace datasets

// In pixels.
struct ImageSize {
  std::int64_t height = 0;
  std::int64_t width = 0;

  bool operator==(const ImageSize&) const = default;
};

// Copies share their steps.
class LOCKSTEP_API ImageTransform {
 public:
  ImageTransform() = default;

  friend LOCKSTEP_API ImageTransform operator|(ImageTransform first, const ImageTransform& second);

  // After the chain; empty if the size depends on the image.
  std::optional<ImageSize> output_size() const;

 protected:
  explicit ImageTransform(std::shared_ptr<const datasets::ImageStep> step);
  explicit ImageTransform(const datasets::Normalization& normalization);

 private:
  friend struct datasets::TransformParts;

  std::vector<std::shared_ptr<const datasets::ImageStep>> steps_;
  std::shared_ptr<const datasets::Normalization> normalization_;
};

// --- Sizes ---------------------------------------------------------------------------------------

struct ResizeOptions {
  // Limit of the longer side after Resize(side); 0: none.
  std::int64_t max_size = 0;
};

// Bilinear, with antialiasing.
class LOCKSTEP_API Resize : public ImageTransform {
 public:
  // The shorter side becomes `side`, or less by max_size; the aspect ratio is kept.
  explicit Resize(std::int64_t side, const ResizeOptions& options = {});

  // The aspect ratio may change.
  explicit Resize(const ImageSize& size);
};

// A smaller image gets black margins.
class LOCKSTEP_API CenterCrop : public ImageTransform {
 public:
  explicit CenterCrop(std::int64_t side);
  explicit CenterCrop(const ImageSize& size);
};

struct RandomResizedCropOptions {
  // Smallest and largest share of the image's area.
  std::array<double, 2> scale = {0.08, 1.0};

  // Smallest and largest width / height. The logarithm is drawn uniformly.
  std::array<double, 2> ratio = {3.0 / 4.0, 4.0 / 3.0};
};

class LOCKSTEP_API RandomResizedCrop : public ImageTransform {
 public:
  explicit RandomResizedCrop(std::int64_t side, const RandomResizedCropOptions& options = {});
  explicit RandomResizedCrop(const ImageSize& size, const RandomResizedCropOptions& options = {});
};

// --- Positions -----------------------------------------------------------------------------------

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
  std::array<std::uint8_t, 3> fill = {0, 0, 0};  // RGB outside of the image.
};

// Counter-clockwise around the centre. The size does not change.
class LOCKSTEP_API RandomRotation : public ImageTransform {
 public:
  // Angle between -degrees and degrees.
  explicit RandomRotation(double degrees, const RandomRotationOptions& options = {});

  // Angle between the two values, in degrees.
  explicit RandomRotation(const std::array<double, 2>& degrees,
                          const RandomRotationOptions& options = {});
};

// --- Colours -------------------------------------------------------------------------------------

// An amount, or the smallest and largest factor.
struct JitterRange {
  JitterRange() = default;
  JitterRange(double around) : amount(around) {}
  JitterRange(double least, double most) : range({least, most}) {}

  double amount = 0;
  std::optional<std::array<double, 2>> range = {};
};

struct ColorJitterOptions {
  // Factors from max(0, 1 - amount) to 1 + amount. Factor 1 changes nothing.
  JitterRange brightness = {};
  JitterRange contrast = {};
  JitterRange saturation = {};

  // Rotations of the colour circle, from -amount to amount; at most 0.5.
  JitterRange hue = {};
};

// Makes its changes in random order.
class LOCKSTEP_API ColorJitter : public ImageTransform {
 public:
  explicit ColorJitter(const ColorJitterOptions& options);
};

struct GaussianBlurOptions {
  // Smallest and largest standard deviation, in pixels.
  std::array<double, 2> sigma = {0.1, 2.0};
};

// Beyond its borders, the image is mirrored. Errors: misuse during the transform if the image is
// not larger than half of the kernel.
class LOCKSTEP_API GaussianBlur : public ImageTransform {
 public:
  // `kernel_size` is odd.
  explicit GaussianBlur(std::int64_t kernel_size, const GaussianBlurOptions& options = {});
};

// (value - mean) / deviation per channel.
class LOCKSTEP_API Normalize : public ImageTransform {
 public:
  Normalize(const std::array<double, 3>& mean, const std::array<double, 3>& deviation);
};

}  // namespace lockstep
