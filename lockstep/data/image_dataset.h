// Labelled images in memory, as a dataset of torch::data.
//
// A value type whose copies share the tensors, so each worker of a data loader may have a copy.
//
// Thread safety: get() may be called from any thread at once.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

class LOCKSTEP_API ImageDataset : public torch::data::datasets::Dataset<ImageDataset> {
 public:
  // `images` are uint8 [N, channels, height, width], `targets` int64 [N]. Both are on the CPU;
  // contiguous tensors are not copied. Errors: misuse.
  ImageDataset(at::Tensor images, at::Tensor targets);

  // Takes ownership of `pixels`, N images of channels * height * width values, and one label for
  // each.
  ImageDataset(std::vector<std::uint8_t> pixels, std::int64_t channels, std::int64_t height,
               std::int64_t width, const std::vector<std::uint8_t>& labels);

  // Returns a float [channels, height, width] with value / 255, and an int64 scalar. Both are new
  // tensors.
  torch::data::Example<> get(std::size_t index) override;
  std::optional<std::size_t> size() const override;

  const at::Tensor& images() const { return images_; }
  const at::Tensor& targets() const { return targets_; }

 private:
  at::Tensor images_;
  at::Tensor targets_;
};

}  // namespace lockstep
