// Labelled images in memory: MNIST and its like, CIFAR, or your own. They are datasets of
// torch::data and, by a conversion, of lockstep::Loader, which is many times as fast.
//
// `directory` is a path, or a bare name such as "fashion-mnist" or "cifar-10-batches-bin", which is
// also searched below $LOCKSTEP_DATA and /usr/share/datasets.
//
// Thread safety: get() may be called from any thread at once.
// Errors: corrupt, naming file, byte, expected and found, before memory of a claimed size is
// allocated; system if the files are not found, or hold more images than fit into memory.

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

// A value type whose copies share the tensors, so each worker of a data loader may have a copy.
class LOCKSTEP_API ImageDataset : public torch::data::datasets::Dataset<ImageDataset> {
 public:
  // `images` are uint8 [N, channels, height, width], `targets` int64 [N]. Both are on the CPU;
  // contiguous tensors are not copied. Errors: misuse.
  ImageDataset(const at::Tensor& images, const at::Tensor& targets);

  // Takes ownership of `pixels`, N images of channels * height * width values, and one label for
  // each.
  ImageDataset(std::vector<std::uint8_t> pixels, std::int64_t channels, std::int64_t height,
               std::int64_t width, const std::vector<std::uint8_t>& labels);

  // For torch::data: returns a float [channels, height, width] with value / 255, and an int64
  // scalar. Both are new tensors.
  torch::data::Example<> get(std::size_t index) override;
  std::optional<std::size_t> size() const override;

  // For Loader: the same values. To normalise them, make a TensorDataset of images() and targets().
  operator const TensorDataset&() const& { return samples_; }
  operator const TensorDataset&() const&& = delete;  // The dataset would be gone.

  const at::Tensor& images() const { return samples_.data(); }
  const at::Tensor& targets() const { return samples_.target(); }

 private:
  TensorDataset samples_;
};

// The two files of a dataset in IDX, packed by gzip or not.
struct IdxFiles {
  std::filesystem::path images;
  std::filesystem::path labels;
};

// MNIST and similar datasets (Fashion-MNIST, KMNIST, EMNIST): labelled grey images in IDX files.
// They are as in the file: EMNIST's images are transposed, and the labels of its letters begin with
// 1, as in torchvision.
class LOCKSTEP_API IdxDataset : public ImageDataset {
 public:
  // Reads {train,t10k,test}-images-idx3-ubyte and -labels-idx1-ubyte, packed (.gz) or not, also
  // with a dot in front of idx. A `directory` that does not exist is a prefix:
  // "data/emnist-letters" are the files data/emnist-letters-train-images-idx3-ubyte and so on. A
  // folder with a single such prefix needs none. `classes` is the number of classes that the
  // program knows; a label beyond them would silently count as wrong.
  // Errors: in addition, unsupported for elements that are not unsigned bytes; corrupt if the files
  // hold unequal numbers of labels and images, and, naming it, for a label beyond `classes`.
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
