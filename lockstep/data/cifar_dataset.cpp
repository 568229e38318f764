// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/cifar_dataset.h"

#include <string>
#include <utility>

#include "lockstep/data/cifar.h"
#include "lockstep/data/find_dataset.h"

namespace lockstep {
namespace {

DatasetFiles cifar10_files(bool train) {
  if (!train) return {.names = {"test_batch.bin"}};
  DatasetFiles files;
  for (int batch = 1; batch <= 5; ++batch)
    files.names.push_back("data_batch_" + std::to_string(batch) + ".bin");
  return files;
}

ImageDataset to_dataset(CifarImages images) {
  return {std::move(images.pixels), cifar_channels, cifar_side, cifar_side, images.labels};
}

std::string remedy(const std::string& archive) {
  return "It comes as https://www.cs.toronto.edu/~kriz/" + archive;
}

}  // namespace

Cifar10Dataset::Cifar10Dataset(const std::filesystem::path& directory, bool train)
    : ImageDataset(to_dataset(read_cifar10(
          find_dataset(directory, cifar10_files(train), remedy("cifar-10-binary.tar.gz"))))) {}

Cifar100Dataset::Cifar100Dataset(const std::filesystem::path& directory, bool train)
    : ImageDataset(to_dataset(
          read_cifar100(find_dataset(directory, {.names = {train ? "train.bin" : "test.bin"}},
                                     remedy("cifar-100-binary.tar.gz"))))) {}

}  // namespace lockstep
