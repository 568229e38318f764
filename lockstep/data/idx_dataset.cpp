// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/idx_dataset.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/find_dataset.h"
#include "lockstep/data/idx.h"

namespace lockstep {
namespace {

constexpr std::size_t image_dimensions = 3;  // Images, rows, columns.
constexpr std::size_t label_dimensions = 1;

IdxArray read(const std::filesystem::path& file, std::size_t dimensions) {
  IdxArray array = read_idx(file);
  if (array.shape.size() != dimensions)
    throw Error(Fault::corrupt, file.string() + ": byte 3: expected " + std::to_string(dimensions) +
                                    " dimensions, found " + std::to_string(array.shape.size()));
  return array;
}

void require_known(const std::filesystem::path& file, const std::vector<std::uint8_t>& labels,
                   int classes) {
  require(classes > 0, "IdxDataset: the number of classes must be positive");
  const auto unknown =
      std::ranges::find_if(labels, [&](std::uint8_t label) { return label >= classes; });
  if (unknown == labels.end()) return;
  throw Error(Fault::corrupt, file.string() + ": the label of sample " +
                                  std::to_string(unknown - labels.begin()) + " is " +
                                  std::to_string(*unknown) + ", and the program has " +
                                  std::to_string(classes) + " classes, from 0 on");
}

ImageDataset read_dataset(const std::filesystem::path& directory, bool train,
                          std::optional<int> classes) {
  const std::string set = train ? "train" : "t10k";
  const auto files = find_dataset(
      directory,
      {.names = {set + "-images-idx3-ubyte", set + "-labels-idx1-ubyte"}, .packed = true},
      directory == "fashion-mnist" ? "Debian's package dataset-fashion-mnist brings it." : "");

  IdxArray images = read(files[0], image_dimensions);
  const IdxArray labels = read(files[1], label_dimensions);
  if (images.shape[0] != labels.shape[0])
    throw Error(Fault::corrupt, files[0].string() + " holds " + std::to_string(images.shape[0]) +
                                    " images, but " + files[1].string() + " holds " +
                                    std::to_string(labels.shape[0]) + " labels");
  if (images.shape[1] == 0 || images.shape[2] == 0)
    throw Error(Fault::corrupt, files[0].string() +
                                    ": byte 8: expected images with pixels, found " +
                                    std::to_string(images.shape[1]) + " rows of " +
                                    std::to_string(images.shape[2]));
  if (classes) require_known(files[1], labels.values, *classes);
  return ImageDataset(std::move(images.values), 1, images.shape[1], images.shape[2], labels.values);
}

}  // namespace

IdxDataset::IdxDataset(const std::filesystem::path& directory, bool train,
                       std::optional<int> classes)
    : ImageDataset(read_dataset(directory, train, classes)) {}

}  // namespace lockstep
