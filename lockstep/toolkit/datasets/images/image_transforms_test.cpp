// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/images/image_transforms.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/toolkit/datasets/images/image_step.h"
#include "tests/fault_of.h"

namespace lockstep::datasets::image_transforms_test {
namespace {

// Red is the column, green the row, blue 50.
Pixels coordinates(const ImageSize& size) {
  Pixels pixels;
  pixels.resize(size);
  for (std::int64_t y = 0; y < size.height; ++y)
    for (std::int64_t x = 0; x < size.width; ++x) {
      pixels.row(y)[3 * x] = static_cast<std::uint8_t>(x);
      pixels.row(y)[3 * x + 1] = static_cast<std::uint8_t>(y);
      pixels.row(y)[3 * x + 2] = 50;
    }
  return pixels;
}

class Recorder final : public ImageReader {
 public:
  explicit Recorder(const PixelView& pixels) : pixels_(pixels) {}

  const ImageSize& size() const override { return pixels_.size; }
  void read(const Region& region, Pixels& to) override {
    decoded = region;
    to.copy(pixels_.part(region));
  }

  Region decoded;

 private:
  PixelView pixels_;
};

struct Result {
  at::Tensor image;  // Floats [3, height, width].
  Region decoded;
};

Result transformed(const ImageTransform& transform, const ImageSize& size, std::size_t sample = 0,
                   at::MemoryFormat format = at::MemoryFormat::Contiguous) {
  const Pixels pixels = coordinates(size);
  Recorder source(pixels.view());
  PixelMemory memory;
  ImageEdit image(source, memory);
  SampleRandom random(1, 0, sample);
  TransformParts::apply(transform, image, random);
  const at::Tensor batch = at::empty({1, channels, image.size().height, image.size().width},
                                     at::TensorOptions(at::kFloat).memory_format(format));
  image.write(TransformParts::values(transform), batch[0]);
  return {batch[0], source.decoded};
}

int value(const at::Tensor& image, int channel, std::int64_t y, std::int64_t x) {
  return static_cast<int>(std::lround(image[channel][y][x].item<float>() * 255));
}

TEST(ImageTransform, WithoutStepsScalesBytesToOne) {
  const at::Tensor image = transformed({}, {4, 5}).image;
  EXPECT_EQ(image[0][3][2].item<float>(), 2.0F / 255.0F);
  EXPECT_EQ(image[1][3][2].item<float>(), 3.0F / 255.0F);
}

TEST(ImageTransform, WritesTheSameValuesInEachMemoryFormat) {
  const auto chain =
      CenterCrop({7, 9}) | RandomHorizontalFlip(1) | Normalize({0.1, 0.2, 0.3}, {0.4, 0.5, 0.6});
  const at::Tensor plain = transformed(chain, {20, 30}).image;
  const at::Tensor last = transformed(chain, {20, 30}, 0, at::MemoryFormat::ChannelsLast).image;
  EXPECT_EQ(last.stride(2), 3);
  EXPECT_TRUE(plain.equal(last));
}

TEST(ImageTransform, ACropAtTheBeginningLimitsDecoding) {
  const Result result = transformed(CenterCrop({4, 6}) | RandomVerticalFlip(1), {20, 31});
  EXPECT_EQ(result.decoded, (Region{.left = 12, .top = 8, .size = {4, 6}}));
  EXPECT_EQ(value(result.image, 0, 0, 0), 12);
  EXPECT_EQ(value(result.image, 1, 0, 0), 11);
}

TEST(ImageTransform, FlipsBeforeACropMirrorIt) {
  const auto flips = RandomHorizontalFlip(1) | RandomVerticalFlip(1);
  const Result result = transformed(flips | CenterCrop({3, 4}), {8, 9});
  // Rows 2 to 4 and columns 2 to 5 of the flipped image, by Python's round().
  EXPECT_EQ(value(result.image, 0, 0, 0), 8 - 2);
  EXPECT_EQ(value(result.image, 1, 0, 0), 7 - 2);
  EXPECT_EQ(value(result.image, 0, 2, 3), 8 - 5);
}

TEST(ImageTransform, AnImageSmallerThanACropGetsBlackMargins) {
  const Result result = transformed(RandomHorizontalFlip(1) | CenterCrop({9, 4}), {4, 10});
  EXPECT_EQ(value(result.image, 2, 1, 0), 0);
  EXPECT_EQ(value(result.image, 2, 2, 0), 50);
  EXPECT_EQ(value(result.image, 0, 2, 0), 6);
  EXPECT_EQ(value(result.image, 2, 5, 3), 50);
  EXPECT_EQ(value(result.image, 2, 6, 3), 0);
}

TEST(ImageTransform, KnowsTheSizeOfItsImages) {
  EXPECT_EQ((Resize(256) | CenterCrop(224)).output_size(), (ImageSize{224, 224}));
  EXPECT_EQ((Resize({30, 40}) | RandomRotation(20) | GaussianBlur(3)).output_size(),
            (ImageSize{30, 40}));
  EXPECT_EQ((CenterCrop({100, 50}) | Resize(25)).output_size(), (ImageSize{50, 25}));
  EXPECT_EQ((Resize(256) | RandomHorizontalFlip()).output_size(), std::nullopt);
  EXPECT_EQ(ImageTransform().output_size(), std::nullopt);
}

TEST(ImageTransform, DrawsFromTheSampleAlone) {
  const auto chain =
      RandomResizedCrop(16) | RandomHorizontalFlip() |
      ColorJitter({.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1});
  const at::Tensor once = transformed(chain, {60, 70}, 5).image;
  EXPECT_TRUE(once.equal(transformed(chain, {60, 70}, 5).image));
  EXPECT_FALSE(once.equal(transformed(chain, {60, 70}, 6).image));
}

TEST(ImageTransform, RandomResizedCropDrawsAreaAndRatioFromTheirRanges) {
  double least_area = 1;
  double most_area = 0;
  double sum_of_logarithms = 0;
  constexpr int samples = 2000;
  std::set<std::int64_t> lefts;
  for (int sample = 0; sample < samples; ++sample) {
    const Region crop = transformed(RandomResizedCrop(2), {200, 200}, sample).decoded;
    const double ratio =
        static_cast<double>(crop.size.width) / static_cast<double>(crop.size.height);
    const double area = static_cast<double>(crop.size.width * crop.size.height) / (200 * 200);
    EXPECT_GE(ratio, 0.74);
    EXPECT_LE(ratio, 1.36);
    least_area = std::min(least_area, area);
    most_area = std::max(most_area, area);
    sum_of_logarithms += std::log(ratio);
    lefts.insert(crop.left);
  }
  EXPECT_NEAR(least_area, 0.08, 0.01);
  EXPECT_GT(most_area, 0.97);
  // The mean of a uniform logarithm is 0, with a deviation of 0.166 / sqrt(2000).
  EXPECT_NEAR(sum_of_logarithms / samples, 0, 0.015);
  EXPECT_GT(lefts.size(), 90);
}

TEST(ImageTransform, FlipsWithTheGivenProbability) {
  int flipped = 0;
  for (std::size_t sample = 0; sample < 1000; ++sample)
    flipped += value(transformed(RandomHorizontalFlip(0.3), {1, 4}, sample).image, 0, 0, 0) == 3;
  EXPECT_NEAR(flipped, 300, 45);  // Three deviations.
}

TEST(ImageTransform, ColorJitterChangesInEveryOrder) {
  // The order of brightness 2 and contrast 0 changes the grey only by rounding. Clipping at 255
  // makes the difference visible.
  const auto chain = ColorJitter({.brightness = {60, 60}, .contrast = {0, 0}});
  std::set<int> greys;
  for (std::size_t sample = 0; sample < 50; ++sample)
    greys.insert(value(transformed(chain, {4, 4}, sample).image, 0, 0, 0));
  EXPECT_EQ(greys.size(), 2);
}

TEST(ImageTransform, RefusesOptionsOutOfRange) {
  const std::vector<std::function<void()>> wrong{
      [] { Resize(0); },
      [] {
        Resize({10, -1});
      },
      [] { Resize(10, {.max_size = 10}); },
      [] { CenterCrop(-5); },
      [] {
        CenterCrop({1 << 30, 1 << 30});
      },
      [] {
        RandomResizedCrop(10, {.scale = {0.5, 0.4}});
      },
      [] {
        RandomResizedCrop(10, {.scale = {0.5, 1.5}});
      },
      [] {
        RandomResizedCrop(10, {.ratio = {0, 1}});
      },
      [] { RandomHorizontalFlip(1.1); },
      [] { RandomVerticalFlip(std::nan("")); },
      [] { RandomRotation(-10); },
      [] {
        RandomRotation({20, 10});
      },
      [] { ColorJitter({.brightness = -0.1}); },
      [] {
        ColorJitter({.contrast = {2, 1}});
      },
      [] { ColorJitter({.hue = 0.6}); },
      [] {
        ColorJitter({.hue = {-0.6, 0}});
      },
      [] { GaussianBlur(4); },
      [] {
        GaussianBlur(3, {.sigma = {0, 1}});
      },
      [] {
        Normalize({0, 0, 0}, {1, 0, 1});
      },
      [] {
        Normalize({0, 0, 0}, {1, 1, 1}) | CenterCrop(3);
      },
      [] {
        Normalize({0, 0, 0}, {1, 1, 1}) | Normalize({0, 0, 0}, {1, 1, 1});
      }};
  for (std::size_t i = 0; i < wrong.size(); ++i)
    EXPECT_EQ(test::fault_of(wrong[i]), Fault::misuse) << i;
}

TEST(ImageTransform, RefusesAnImageThatABlurCannotMirror) {
  EXPECT_EQ(test::fault_of([] { transformed(GaussianBlur(9), {4, 30}); }), Fault::misuse);
  transformed(GaussianBlur(9), {5, 5});
}

TEST(ImageTransform, RefusesProportionsThatWouldTakeAllMemory) {
  EXPECT_THROW(transformed(Resize(256), {1, 60'000}), BadImage);
}

}  // namespace
}  // namespace lockstep::datasets::image_transforms_test
