// Labelled images in memory, for torch::data and the faster lockstep::DataLoader: MNIST and similar
// formats, CIFAR, or your own images.
//
// `directory` is a path, or a bare name such as "fashion-mnist", which is also searched below
// $LOCKSTEP_DATA and /usr/share/datasets.
//
// Thread safety: several threads may call get() at once.
// Errors: corrupt; claimed sizes are checked before memory is allocated. System if files are not
// found or not readable, or do not fit into memory.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/data/tensor_dataset.h"

namespace lockstep {

// A value type. Copies share the tensors.
class LOCKSTEP_API ImageDataset : public torch::data::datasets::Dataset<ImageDataset> {
 public:
  // `images` are uint8 [N, channels, height, width], `targets` int64 [N], both on the CPU. Does not
  // copy contiguous tensors. Errors: misuse.
  ImageDataset(const at::Tensor& images, const at::Tensor& targets);

  // `pixels` are N images of channels * height * width values, with one of the `labels` each.
  ImageDataset(std::vector<std::uint8_t> pixels, std::int64_t channels, std::int64_t height,
               std::int64_t width, const std::vector<std::uint8_t>& labels);

  // For torch::data: a float [channels, height, width] with value / 255, and an int64 scalar.
  torch::data::Example<> get(std::size_t index) override;
  std::optional<std::size_t> size() const override;

  // For DataLoader: the same values. To normalise, make a TensorDataset.
  operator const TensorDataset&() const& { return samples_; }
  operator const TensorDataset&() const&& = delete;  // It would dangle.

  const at::Tensor& images() const { return samples_.data(); }
  const at::Tensor& targets() const { return samples_.target(); }

 private:
  TensorDataset samples_;
};

struct IdxFiles {
  std::filesystem::path images;
  std::filesystem::path labels;
};

// MNIST, Fashion-MNIST, KMNIST, EMNIST: grey images in IDX files. As in torchvision, EMNIST's
// images are transposed, and the labels of its letters begin with 1.
class LOCKSTEP_API IdxDataset : public ImageDataset {
 public:
  // Reads {train,t10k,test}-images-idx3-ubyte and -labels-idx1-ubyte, also with .gz, or with a dot
  // before idx. If `directory` does not exist, it is a prefix: "data/emnist-letters" stands for
  // data/emnist-letters-train-images-idx3-ubyte and so on. The only prefix in a folder may be
  // omitted; several are misuse. `classes`: the model's number of classes. Errors: also unsupported
  // for elements other than unsigned bytes; corrupt for a label of `classes` or more, and for
  // unequal numbers of labels and images.
  IdxDataset(const std::filesystem::path& directory, bool train,
             std::optional<int> classes = std::nullopt);

  explicit IdxDataset(const IdxFiles& files, std::optional<int> classes = std::nullopt);
};

// CIFAR-10 and CIFAR-100: colour images of 32 by 32 pixels.
class LOCKSTEP_API Cifar10Dataset : public ImageDataset {
 public:
  // Reads data_batch_1.bin to data_batch_5.bin, or test_batch.bin.
  Cifar10Dataset(const std::filesystem::path& directory, bool train);
};

class LOCKSTEP_API Cifar100Dataset : public ImageDataset {
 public:
  // Reads train.bin or test.bin. Targets are the 100 fine labels.
  Cifar100Dataset(const std::filesystem::path& directory, bool train);
};

}  // namespace lockstep
