// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/images/image_transforms.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/toolkit/datasets/images/image_step.h"
#include "lockstep/toolkit/datasets/images/pixel_operations.h"

namespace lockstep {

using datasets::ImageEdit;
using datasets::ImageStep;
using datasets::Region;

namespace {

using Range = std::array<double, 2>;
using MaybeSize = std::optional<ImageSize>;

// Python's round(): halves to even.
std::int64_t rounded(double value) { return static_cast<std::int64_t>(std::nearbyint(value)); }

void require_size(const char* name, const ImageSize& size) {
  require(size.height > 0 && size.width > 0 && size.height * size.width <= datasets::most_pixels,
          [&] {
            std::string text(name);
            text += ": a size of " + std::to_string(size.height) + " x ";
            return text + std::to_string(size.width) + " pixels is not possible";
          });
}

void require_range(const char* name, const char* option, const Range& range, double least,
                   double most) {
  require(least <= range[0] && range[0] <= range[1] && range[1] <= most, [&] {
    std::string text(name);
    text.append(": ").append(option).append(" must rise, and lie between ");
    text += std::to_string(least) + " and " + std::to_string(most) + ", but is ";
    return text + std::to_string(range[0]) + " to " + std::to_string(range[1]);
  });
}

void require_probability(const char* name, double probability) {
  require_range(name, "the probability", {probability, probability}, 0, 1);
}

constexpr double no_limit = 1e9;
constexpr double least_positive = 1e-6;

// --- Steps ---------------------------------------------------------------------------------------

class ResizeShorterSide final : public ImageStep {
 public:
  ResizeShorterSide(std::int64_t side, std::int64_t longest) : side_(side), longest_(longest) {}

  void apply(ImageEdit& image, SampleRandom&) const override { image.resize(wanted(image.size())); }

  MaybeSize size_after(const MaybeSize& before) const override {
    return before ? MaybeSize(wanted(*before)) : std::nullopt;
  }

 private:
  ImageSize wanted(const ImageSize& size) const {
    return datasets::size_with_shorter_side(size, side_, longest_);
  }

  const std::int64_t side_;
  const std::int64_t longest_;
};

class ResizeExactly final : public ImageStep {
 public:
  explicit ResizeExactly(const ImageSize& size) : size_(size) {}

  void apply(ImageEdit& image, SampleRandom&) const override { image.resize(size_); }
  MaybeSize size_after(const MaybeSize&) const override { return size_; }

 private:
  const ImageSize size_;
};

// functional.center_crop()
class CropCenter final : public ImageStep {
 public:
  explicit CropCenter(const ImageSize& size) : size_(size) {}

  void apply(ImageEdit& image, SampleRandom&) const override {
    image.crop({.left = first(image.size().width, size_.width),
                .top = first(image.size().height, size_.height),
                .size = size_});
  }
  MaybeSize size_after(const MaybeSize&) const override { return size_; }

 private:
  // Negative for a smaller image: black margins, smaller one first.
  static std::int64_t first(std::int64_t whole, std::int64_t part) {
    if (whole < part) return -((part - whole) / 2);
    return rounded(static_cast<double>(whole - part) / 2);
  }

  const ImageSize size_;
};

// RandomResizedCrop.get_params()
class CropAndResize final : public ImageStep {
 public:
  CropAndResize(const ImageSize& size, const RandomResizedCropOptions& options)
      : size_(size), options_(options) {}

  void apply(ImageEdit& image, SampleRandom& random) const override {
    image.crop(choose(image.size(), random));
    image.resize(size_);
  }
  MaybeSize size_after(const MaybeSize&) const override { return size_; }

 private:
  Region choose(const ImageSize& whole, SampleRandom& random) const {
    constexpr int attempts = 10;
    const auto area = static_cast<double>(whole.height * whole.width);
    const Range logarithms{std::log(options_.ratio[0]), std::log(options_.ratio[1])};
    for (int attempt = 0; attempt < attempts; ++attempt) {
      const double wanted = area * random.uniform(options_.scale[0], options_.scale[1]);
      const double ratio = std::exp(random.uniform(logarithms[0], logarithms[1]));
      const ImageSize part{rounded(std::sqrt(wanted / ratio)), rounded(std::sqrt(wanted * ratio))};
      if (part.width < 1 || part.width > whole.width || part.height < 1 ||
          part.height > whole.height)
        continue;
      const std::int64_t top = random.below(whole.height - part.height + 1);
      return {random.below(whole.width - part.width + 1), top, part};
    }
    return center(whole);
  }

  // Largest centred region with an allowed ratio.
  Region center(const ImageSize& whole) const {
    const auto width = static_cast<double>(whole.width);
    const auto height = static_cast<double>(whole.height);
    ImageSize part = whole;
    if (width / height < options_.ratio[0]) part.height = rounded(width / options_.ratio[0]);
    if (width / height > options_.ratio[1]) part.width = rounded(height * options_.ratio[1]);
    part = {std::max<std::int64_t>(part.height, 1), std::max<std::int64_t>(part.width, 1)};
    return {(whole.width - part.width) / 2, (whole.height - part.height) / 2, part};
  }

  const ImageSize size_;
  const RandomResizedCropOptions options_;
};

class SameSize : public ImageStep {
 public:
  MaybeSize size_after(const MaybeSize& before) const final { return before; }
};

class Flip final : public SameSize {
 public:
  Flip(double probability, bool horizontal) : probability_(probability), horizontal_(horizontal) {}

  void apply(ImageEdit& image, SampleRandom& random) const override {
    if (random.uniform() >= probability_) return;
    if (horizontal_)
      image.flip_horizontally();
    else
      image.flip_vertically();
  }

 private:
  const double probability_;
  const bool horizontal_;
};

class Rotate final : public SameSize {
 public:
  Rotate(const Range& degrees, const RandomRotationOptions& options)
      : degrees_(degrees), options_(options) {}

  void apply(ImageEdit& image, SampleRandom& random) const override {
    image.replace([&](const datasets::Pixels& from, datasets::Pixels& to) {
      datasets::rotate_pixels(from,
                              {.degrees = random.uniform(degrees_[0], degrees_[1]),
                               .bilinear = options_.bilinear,
                               .fill = options_.fill},
                              to);
    });
  }

 private:
  const Range degrees_;
  const RandomRotationOptions options_;
};

class Blur final : public SameSize {
 public:
  Blur(std::int64_t kernel_size, const Range& sigma) : kernel_size_(kernel_size), sigma_(sigma) {}

  void apply(ImageEdit& image, SampleRandom& random) const override {
    image.replace([&](const datasets::Pixels& from, datasets::Pixels& to) {
      datasets::blur_pixels(from, kernel_size_, random.uniform(sigma_[0], sigma_[1]), to);
    });
  }

 private:
  const std::int64_t kernel_size_;
  const Range sigma_;
};

class Jitter final : public SameSize {
 public:
  struct Change {
    void (*change)(datasets::Pixels&, double factor);
    Range factors;
  };
  explicit Jitter(std::vector<Change> changes) : changes_(std::move(changes)) {}

  // Draws the order, then the factors (ColorJitter.get_params()).
  void apply(ImageEdit& image, SampleRandom& random) const override {
    std::vector<const Change*> order;
    for (const Change& change : changes_) order.push_back(&change);
    for (std::size_t left = order.size(); left > 1; --left)
      std::swap(order[left - 1],
                order[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(left)))]);
    for (const Change* next : order)
      next->change(image.pixels(), random.uniform(next->factors[0], next->factors[1]));
  }

 private:
  const std::vector<Change> changes_;
};

// --- Options -------------------------------------------------------------------------------------

std::shared_ptr<const ImageStep> resize_shorter_side(std::int64_t side,
                                                     const ResizeOptions& options) {
  require_size("Resize", {side, side});
  require(options.max_size == 0 || options.max_size > side,
          "Resize: max_size must be larger than the shorter side");
  return std::make_shared<ResizeShorterSide>(side, options.max_size);
}

std::shared_ptr<const ImageStep> resize_exactly(const ImageSize& size) {
  require_size("Resize", size);
  return std::make_shared<ResizeExactly>(size);
}

std::shared_ptr<const ImageStep> crop_center(const ImageSize& size) {
  require_size("CenterCrop", size);
  return std::make_shared<CropCenter>(size);
}

std::shared_ptr<const ImageStep> crop_and_resize(const ImageSize& size,
                                                 const RandomResizedCropOptions& options) {
  require_size("RandomResizedCrop", size);
  require_range("RandomResizedCrop", "scale", options.scale, least_positive, 1);
  require_range("RandomResizedCrop", "ratio", options.ratio, least_positive, no_limit);
  return std::make_shared<CropAndResize>(size, options);
}

std::shared_ptr<const ImageStep> flip(const char* name, double probability, bool horizontal) {
  require_probability(name, probability);
  return std::make_shared<Flip>(probability, horizontal);
}

std::shared_ptr<const ImageStep> rotate(const Range& degrees,
                                        const RandomRotationOptions& options) {
  require_range("RandomRotation", "degrees", degrees, -no_limit, no_limit);
  return std::make_shared<Rotate>(degrees, options);
}

std::shared_ptr<const ImageStep> blur(std::int64_t kernel_size,
                                      const GaussianBlurOptions& options) {
  require(kernel_size > 0 && kernel_size % 2 == 1 && kernel_size < 10'000,
          "GaussianBlur: kernel_size must be odd, positive, and below 10,000");
  require_range("GaussianBlur", "sigma", options.sigma, least_positive, no_limit);
  return std::make_shared<Blur>(kernel_size, options.sigma);
}

// `center`: the factor without effect.
void add(std::vector<Jitter::Change>& changes, void (*change)(datasets::Pixels&, double),
         const char* option, const JitterRange& jitter, double center, const Range& limits) {
  require(jitter.amount >= 0, [&] {
    return std::string("ColorJitter: ").append(option).append(" must not be negative");
  });
  // ColorJitter._check_input()
  const Range factors = jitter.range.value_or(
      Range{std::max(center - jitter.amount, limits[0]), center + jitter.amount});
  require_range("ColorJitter", option, factors, limits[0], limits[1]);
  if (factors != Range{center, center}) changes.push_back({change, factors});
}

std::shared_ptr<const ImageStep> jitter(const ColorJitterOptions& options) {
  std::vector<Jitter::Change> changes;
  const Range factors{0, no_limit};
  add(changes, datasets::change_brightness, "brightness", options.brightness, 1, factors);
  add(changes, datasets::change_contrast, "contrast", options.contrast, 1, factors);
  add(changes, datasets::change_saturation, "saturation", options.saturation, 1, factors);
  require(options.hue.amount <= 0.5, "ColorJitter: hue must be at most 0.5, half a turn");
  add(changes, datasets::change_hue, "hue", options.hue, 0, {-0.5, 0.5});
  return std::make_shared<Jitter>(std::move(changes));
}

datasets::Normalization normalization(const std::array<double, 3>& mean,
                                      const std::array<double, 3>& deviation) {
  for (const double value : deviation)
    require(static_cast<float>(value) != 0 && std::isfinite(value),
            "Normalize: a deviation must be a number other than zero");
  return {mean, deviation};
}

}  // namespace

ImageTransform::ImageTransform(std::shared_ptr<const ImageStep> step) : steps_{std::move(step)} {}

ImageTransform::ImageTransform(const datasets::Normalization& normalization)
    : normalization_(std::make_shared<const datasets::Normalization>(normalization)) {}

ImageTransform operator|(ImageTransform first, const ImageTransform& second) {
  require(!first.normalization_ || (second.steps_.empty() && !second.normalization_),
          "Normalize must be the last transform of a chain");
  first.steps_.insert(first.steps_.end(), second.steps_.begin(), second.steps_.end());
  if (second.normalization_) first.normalization_ = second.normalization_;
  return first;
}

std::optional<ImageSize> ImageTransform::output_size() const {
  MaybeSize size;
  for (const auto& step : steps_) size = step->size_after(size);
  return size;
}

Resize::Resize(std::int64_t side, const ResizeOptions& options)
    : ImageTransform(resize_shorter_side(side, options)) {}
Resize::Resize(const ImageSize& size) : ImageTransform(resize_exactly(size)) {}

CenterCrop::CenterCrop(std::int64_t side) : CenterCrop(ImageSize{side, side}) {}
CenterCrop::CenterCrop(const ImageSize& size) : ImageTransform(crop_center(size)) {}

RandomResizedCrop::RandomResizedCrop(std::int64_t side, const RandomResizedCropOptions& options)
    : RandomResizedCrop(ImageSize{side, side}, options) {}
RandomResizedCrop::RandomResizedCrop(const ImageSize& size, const RandomResizedCropOptions& options)
    : ImageTransform(crop_and_resize(size, options)) {}

RandomHorizontalFlip::RandomHorizontalFlip(double probability)
    : ImageTransform(flip("RandomHorizontalFlip", probability, true)) {}
RandomVerticalFlip::RandomVerticalFlip(double probability)
    : ImageTransform(flip("RandomVerticalFlip", probability, false)) {}

RandomRotation::RandomRotation(double degrees, const RandomRotationOptions& options)
    : RandomRotation(Range{-degrees, degrees}, options) {}
RandomRotation::RandomRotation(const std::array<double, 2>& degrees,
                               const RandomRotationOptions& options)
    : ImageTransform(rotate(degrees, options)) {}

ColorJitter::ColorJitter(const ColorJitterOptions& options) : ImageTransform(jitter(options)) {}

GaussianBlur::GaussianBlur(std::int64_t kernel_size, const GaussianBlurOptions& options)
    : ImageTransform(blur(kernel_size, options)) {}

Normalize::Normalize(const std::array<double, 3>& mean, const std::array<double, 3>& deviation)
    : ImageTransform(normalization(mean, deviation)) {}

namespace datasets {

void TransformParts::apply(const ImageTransform& transform, ImageEdit& image,
                           SampleRandom& random) {
  for (const auto& step : transform.steps_) step->apply(image, random);
}

ValueTable TransformParts::values(const ImageTransform& transform) {
  ValueTable table;
  for (std::size_t c = 0; c < table.size(); ++c)
    for (std::size_t value = 0; value < table[c].size(); ++value) {
      float& entry = table[c][value] = static_cast<float>(value) / 255.0F;
      if (const auto& by = transform.normalization_)
        entry = (entry - static_cast<float>(by->mean[c])) / static_cast<float>(by->deviation[c]);
    }
  return table;
}

}  // namespace datasets
}  // namespace lockstep
