// CIFAR-10 and CIFAR-100: labelled colour images of 32 by 32 pixels.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "lockstep/base/api.h"
#include "lockstep/data/image_dataset.h"

namespace lockstep {

// `directory` is a path, or a bare name such as "cifar-10-batches-bin", which is also searched
// below $LOCKSTEP_DATA and /usr/share/datasets. Errors: those of lockstep/data/cifar.h; system if
// the files are not found.

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
