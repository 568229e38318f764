// MNIST and its relatives (Fashion-MNIST, KMNIST, QMNIST): labelled grey images in IDX files.

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
  // is a path, or a bare name such as "fashion-mnist", which is also looked for below
  // $LOCKSTEP_DATA and /usr/share/datasets. `classes` is how many a program knows: a label beyond
  // them would count as wrong in silence. Errors: those of read_idx(); corrupt when the files do
  // not hold as many labels as images, and, naming it, for a label beyond `classes`; system when
  // they are nowhere.
  IdxDataset(const std::filesystem::path& directory, bool train,
             std::optional<int> classes = std::nullopt);
};

}  // namespace lockstep
