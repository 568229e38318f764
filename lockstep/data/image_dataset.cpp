// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/image_dataset.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

at::Tensor tensor_owning(std::vector<std::uint8_t> values, at::IntArrayRef shape) {
  const auto owner = std::make_shared<std::vector<std::uint8_t>>(std::move(values));
  return at::from_blob(
      owner->data(), shape, [owner](void*) {}, at::kByte);
}

at::Tensor to_images(std::vector<std::uint8_t> pixels, std::int64_t channels, std::int64_t height,
                     std::int64_t width) {
  const std::int64_t pixels_each = channels * height * width;
  const auto count = static_cast<std::int64_t>(pixels.size());
  require(pixels_each > 0 && count % pixels_each == 0, [&] {
    return "ImageDataset: " + std::to_string(count) + " pixels are no whole number of images of " +
           std::to_string(pixels_each);
  });
  return tensor_owning(std::move(pixels), {count / pixels_each, channels, height, width});
}

at::Tensor to_targets(const std::vector<std::uint8_t>& labels) {
  at::Tensor targets = at::empty({static_cast<std::int64_t>(labels.size())}, at::kLong);
  std::copy(labels.begin(), labels.end(), targets.mutable_data_ptr<std::int64_t>());
  return targets;
}

}  // namespace

ImageDataset::ImageDataset(at::Tensor images, at::Tensor targets) {
  require(images.scalar_type() == at::kByte && images.dim() == 4 && images.is_cpu(),
          "ImageDataset: images must be uint8 [N, channels, height, width] on the CPU");
  require(targets.scalar_type() == at::kLong && targets.dim() == 1 && targets.is_cpu(),
          "ImageDataset: targets must be int64 [N] on the CPU");
  require(images.size(0) == targets.size(0), [&] {
    return "ImageDataset: there are " + std::to_string(images.size(0)) + " images, but " +
           std::to_string(targets.size(0)) + " targets";
  });
  images_ = images.contiguous();
  targets_ = targets.contiguous();
}

ImageDataset::ImageDataset(std::vector<std::uint8_t> pixels, std::int64_t channels,
                           std::int64_t height, std::int64_t width,
                           const std::vector<std::uint8_t>& labels)
    : ImageDataset(to_images(std::move(pixels), channels, height, width), to_targets(labels)) {}

torch::data::Example<> ImageDataset::get(std::size_t index) {
  const auto i = static_cast<std::int64_t>(index);
  if (i < 0 || i >= images_.size(0))
    throw Error(Fault::misuse, "ImageDataset: there is no sample " + std::to_string(index));

  // Uses two tensors and one loop. Selecting, converting and dividing with tensor operations would
  // cost several times as much, for every sample of every epoch.
  at::Tensor image = at::empty(images_.sizes().slice(1), at::kFloat);
  const std::int64_t count = image.numel();
  const std::uint8_t* from = images_.const_data_ptr<std::uint8_t>() + i * count;
  float* to = image.mutable_data_ptr<float>();
  for (std::int64_t k = 0; k < count; ++k) to[k] = static_cast<float>(from[k]) / 255.0F;
  return {std::move(image),
          at::scalar_tensor(targets_.const_data_ptr<std::int64_t>()[i], at::kLong)};
}

std::optional<std::size_t> ImageDataset::size() const {
  return static_cast<std::size_t>(images_.size(0));
}

}  // namespace lockstep
