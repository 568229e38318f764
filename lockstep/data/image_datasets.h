// Datasets of labelled images in memory: MNIST and similar formats, CIFAR, or your own images. They
// are datasets of torch::data and convert to datasets of lockstep::Loader, which is many times as
// fast.
//
// `directory` is a path, or a bare name such as "fashion-mnist" or "cifar-10-batches-bin", which is
// also searched below $LOCKSTEP_DATA and /usr/share/datasets.
//
// Thread safety: several threads may call get() at once.
// Errors: corrupt, with file, byte, expected and found value, before memory of a claimed size is
// allocated; system if the files are not found, or do not fit into memory.

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

// A value type. Copies share the tensors, so each worker of a data loader may have a copy.
class LOCKSTEP_API ImageDataset : public torch::data::datasets::Dataset<ImageDataset> {
 public:
  // `images` are uint8 [N, channels, height, width], `targets` int64 [N]. Both are on the CPU;
  // contiguous tensors are not copied. Errors: misuse.
  ImageDataset(const at::Tensor& images, const at::Tensor& targets);

  // Takes ownership of `pixels`: N images of channels * height * width values, and one label per
  // image.
  ImageDataset(std::vector<std::uint8_t> pixels, std::int64_t channels, std::int64_t height,
               std::int64_t width, const std::vector<std::uint8_t>& labels);

  // For torch::data: returns a float tensor [channels, height, width] with value / 255, and an
  // int64 scalar. Both are newly allocated.
  torch::data::Example<> get(std::size_t index) override;
  std::optional<std::size_t> size() const override;

  // For Loader: the same values. To normalise them, create a TensorDataset from images() and
  // targets().
  operator const TensorDataset&() const& { return samples_; }
  operator const TensorDataset&() const&& = delete;  // Deleted: the dataset would dangle.

  const at::Tensor& images() const { return samples_.data(); }
  const at::Tensor& targets() const { return samples_.target(); }

 private:
  TensorDataset samples_;
};

// The two IDX files of a dataset, compressed by gzip or not.
struct IdxFiles {
  std::filesystem::path images;
  std::filesystem::path labels;
};

// MNIST and similar datasets (Fashion-MNIST, KMNIST, EMNIST): labelled grey images in IDX files.
// Images and labels are as stored. As in torchvision, EMNIST's images are thus transposed, and the
// labels of its letters begin with 1.
class LOCKSTEP_API IdxDataset : public ImageDataset {
 public:
  // Reads {train,t10k,test}-images-idx3-ubyte and -labels-idx1-ubyte, compressed (.gz) or not, also
  // with a dot before idx. If `directory` does not exist, it is a prefix: "data/emnist-letters"
  // stands for data/emnist-letters-train-images-idx3-ubyte and so on. If all files of a folder have
  // one prefix, it may be omitted. `classes` is the number of classes of the model: a label beyond
  // it would silently count as wrong.
  // Errors: in addition, unsupported for elements other than unsigned bytes; corrupt if the numbers
  // of labels and images differ, and for a label beyond `classes`, which the message names.
  IdxDataset(const std::filesystem::path& directory, bool train,
             std::optional<int> classes = std::nullopt);

  // Reads these files.
  explicit IdxDataset(const IdxFiles& files, std::optional<int> classes = std::nullopt);
};

// CIFAR-10 and CIFAR-100: labelled colour images of 32 by 32 pixels.
class LOCKSTEP_API Cifar10Dataset : public ImageDataset {
 public:
  // Reads data_batch_1.bin to data_batch_5.bin, or test_batch.bin.
  Cifar10Dataset(const std::filesystem::path& directory, bool train);
};

class LOCKSTEP_API Cifar100Dataset : public ImageDataset {
 public:
  // Reads train.bin or test.bin. The targets are the 100 fine labels.
  Cifar100Dataset(const std::filesystem::path& directory, bool train);
};

}  // namespace lockstep
