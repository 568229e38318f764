// MNIST and similar datasets (Fashion-MNIST, KMNIST, QMNIST): labelled grey images in IDX files.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>

#include "lockstep/base/api.h"
#include "lockstep/data/image_dataset.h"

namespace lockstep {

class LOCKSTEP_API IdxDataset : public ImageDataset {
 public:
  // Reads {train,t10k}-images-idx3-ubyte and -labels-idx1-ubyte, packed (.gz) or not. `directory`
  // is a path, or a bare name such as "fashion-mnist", which is also searched below $LOCKSTEP_DATA
  // and /usr/share/datasets. `classes` is the number of classes that the program knows; a label
  // beyond them would silently count as wrong.
  // Errors: those of read_idx(); corrupt if the files hold unequal numbers of labels and images,
  // and, naming it, for a label beyond `classes`; system if the files are not found.
  IdxDataset(const std::filesystem::path& directory, bool train,
             std::optional<int> classes = std::nullopt);
};

}  // namespace lockstep
