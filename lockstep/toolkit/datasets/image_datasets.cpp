// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/image_datasets.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/variables.h"
#include "lockstep/toolkit/datasets/image_files.h"

namespace lockstep {
namespace {

using Path = std::filesystem::path;

// May be null.
const char* folder_of_datasets() { return read_variable("LOCKSTEP_DATA"); }

bool is_name(const Path& directory) { return !directory.has_parent_path() && !directory.empty(); }

std::vector<Path> places(const Path& directory) {
  std::vector<Path> all{directory};
  if (!is_name(directory)) return all;
  if (const char* root = folder_of_datasets()) all.push_back(Path(root) / directory);
  all.push_back(Path("/usr/share/datasets") / directory);
  return all;
}

// `packed`: files may also be NAME.gz.
struct DatasetFiles {
  std::vector<std::string> names;
  bool packed = false;
};

// Files that cannot be examined count as present; opening reports the reason.
bool is_there(const Path& file) {
  std::error_code failure;
  return std::filesystem::exists(file, failure) || failure;
}

std::optional<Path> find_file(const Path& file, bool packed) {
  if (is_there(file)) return file;
  Path with_suffix = file;
  with_suffix += ".gz";
  if (packed && is_there(with_suffix)) return with_suffix;
  return std::nullopt;
}

std::string remedy_by_variable(const Path& name) {
  if (folder_of_datasets() != nullptr) return ", or correct LOCKSTEP_DATA";
  return ", or set LOCKSTEP_DATA to the folder that contains the folder " + name.string();
}

// All files are in one directory. Errors: system, with every searched place and `remedy`.
std::vector<Path> find_dataset(const Path& directory, const DatasetFiles& files,
                               const std::string& remedy) {
  std::string looked_at;
  for (const Path& place : places(directory)) {
    std::vector<Path> found;
    for (const std::string& name : files.names) {
      const auto file = find_file(place / name, files.packed);
      if (!file) {
        looked_at += "\n  " + (place / name).string() + (files.packed ? "[.gz]" : "");
        break;
      }
      found.push_back(*file);
    }
    if (found.size() == files.names.size()) return found;
  }
  throw Error(Fault::system, "dataset '" + directory.string() + "' was not found; looked for" +
                                 looked_at + "; to do: " + remedy +
                                 (is_name(directory) ? remedy_by_variable(directory) : ""));
}

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
    return "ImageDataset: " + std::to_string(count) + " pixels are not a multiple of the " +
           std::to_string(pixels_each) + " of one image";
  });
  return tensor_owning(std::move(pixels), {count / pixels_each, channels, height, width});
}

at::Tensor to_targets(const std::vector<std::uint8_t>& labels) {
  at::Tensor targets = at::empty({static_cast<std::int64_t>(labels.size())}, at::kLong);
  std::copy(labels.begin(), labels.end(), targets.mutable_data_ptr<std::int64_t>());
  return targets;
}

constexpr std::size_t image_dimensions = 3;  // Images, rows, columns.
constexpr std::size_t label_dimensions = 1;

datasets::IdxArray read(const std::filesystem::path& file, std::size_t dimensions) {
  datasets::IdxArray array = datasets::read_idx(file);
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
                                  std::to_string(*unknown) + ", but the program has only " +
                                  std::to_string(classes) + " classes");
}

// Names of MNIST and EMNIST, and those with a dot of some archives of MNIST.
std::vector<std::string> idx_sets(bool train) {
  if (train) return {"train"};
  return {"t10k", "test"};
}
constexpr std::array image_ends{"-images-idx3-ubyte", "-images.idx3-ubyte"};
constexpr std::array label_ends{"-labels-idx1-ubyte", "-labels.idx1-ubyte"};

// PREFIX + train-images-idx3-ubyte etc.
std::optional<IdxFiles> find_idx_files(const Path& folder, const std::string& prefix, bool train) {
  for (const std::string& set : idx_sets(train)) {
    const auto first = [&](const auto& ends) -> std::optional<Path> {
      for (const char* end : ends)
        if (auto file = find_file(folder / (prefix + set + end), /*packed=*/true)) return file;
      return std::nullopt;
    };
    const auto images = first(image_ends), labels = first(label_ends);
    if (images && labels) return IdxFiles{*images, *labels};
  }
  return std::nullopt;
}

std::set<std::string> idx_prefixes(const Path& folder, bool train) {
  std::set<std::string> prefixes;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::string name = entry->path().filename();
    if (name.ends_with(".gz")) name.resize(name.size() - 3);
    for (const std::string& set : idx_sets(train))
      for (const char* images : image_ends)
        if (name.ends_with("-" + set + images))
          prefixes.insert(name.substr(0, name.size() - set.size() - std::strlen(images)));
  }
  return prefixes;
}

// Errors: misuse for several datasets.
std::optional<IdxFiles> find_idx_files_at(const Path& place, bool train) {
  if (auto files = find_idx_files(place, "", train)) return files;
  std::error_code absent;
  if (!std::filesystem::is_directory(place, absent)) {
    const std::string name = place.filename();
    return name.empty() ? std::nullopt : find_idx_files(place.parent_path(), name + "-", train);
  }
  const auto prefixes = idx_prefixes(place, train);
  if (prefixes.empty()) return std::nullopt;
  require(prefixes.size() == 1, [&] {
    std::string text = place.string() + ": the folder has several datasets; name one of them:";
    for (const std::string& prefix : prefixes)
      text += "\n  " + (place / prefix.substr(0, prefix.size() - 1)).string();
    return text;
  });
  return find_idx_files(place, *prefixes.begin(), train);
}

IdxFiles find_idx_dataset(const Path& directory, bool train) {
  for (const Path& place : places(directory))
    if (auto files = find_idx_files_at(place, train)) return *files;
  const std::string set = idx_sets(train).front();
  const auto found = find_dataset(
      directory, {.names = {set + image_ends[0], set + label_ends[0]}, .packed = true},
      directory == "fashion-mnist"
          ? "install Debian's or Ubuntu's package dataset-fashion-mnist"
          : "name the folder of these files; a dataset of EMNIST is FOLDER/emnist-letters");
  return {found[0], found[1]};
}

ImageDataset read_dataset(const IdxFiles& files, std::optional<int> classes) {
  datasets::IdxArray images = read(files.images, image_dimensions);
  const datasets::IdxArray labels = read(files.labels, label_dimensions);
  if (images.shape[0] != labels.shape[0])
    throw Error(Fault::corrupt, files.images.string() + " holds " +
                                    std::to_string(images.shape[0]) + " images, but " +
                                    files.labels.string() + " holds " +
                                    std::to_string(labels.shape[0]) + " labels");
  if (images.shape[1] == 0 || images.shape[2] == 0)
    throw Error(Fault::corrupt, files.images.string() +
                                    ": byte 8: expected images with pixels, found " +
                                    std::to_string(images.shape[1]) + " rows of " +
                                    std::to_string(images.shape[2]));
  if (classes) require_known(files.labels, labels.values, *classes);
  return ImageDataset(std::move(images.values), 1, images.shape[1], images.shape[2], labels.values);
}

DatasetFiles cifar10_files(bool train) {
  if (!train) return {.names = {"test_batch.bin"}};
  DatasetFiles files;
  for (int batch = 1; batch <= 5; ++batch)
    files.names.push_back("data_batch_" + std::to_string(batch) + ".bin");
  return files;
}

ImageDataset to_dataset(datasets::CifarImages images) {
  return {std::move(images.pixels), datasets::cifar_channels, datasets::cifar_side,
          datasets::cifar_side, images.labels};
}

std::string unpacking_of(const std::string& archive) {
  return "unpack https://www.cs.toronto.edu/~kriz/" + archive + " and name its folder";
}

void require_images(const at::Tensor& images, const at::Tensor& targets) {
  require(images.scalar_type() == at::kByte && images.dim() == 4 && images.is_cpu(),
          "ImageDataset: images must be uint8 [N, channels, height, width] on the CPU");
  require(targets.scalar_type() == at::kLong && targets.dim() == 1 && targets.is_cpu(),
          "ImageDataset: targets must be int64 [N] on the CPU");
  require(images.size(0) == targets.size(0), [&] {
    return "ImageDataset: there are " + std::to_string(images.size(0)) + " images, but " +
           std::to_string(targets.size(0)) + " targets";
  });
}

}  // namespace

ImageDataset::ImageDataset(const at::Tensor& images, const at::Tensor& targets)
    : samples_((require_images(images, targets), images), targets) {}

ImageDataset::ImageDataset(std::vector<std::uint8_t> pixels, std::int64_t channels,
                           std::int64_t height, std::int64_t width,
                           const std::vector<std::uint8_t>& labels)
    : ImageDataset(to_images(std::move(pixels), channels, height, width), to_targets(labels)) {}

torch::data::Example<> ImageDataset::get(std::size_t index) {
  if (index >= samples_.size())
    throw Error(Fault::misuse, "ImageDataset: there is no sample " + std::to_string(index));

  // One pass: selecting, converting and dividing would take several times as long.
  const std::array indices{index};
  torch::data::Example<> example{at::empty(images().sizes().slice(1), at::kFloat),
                                 at::empty({}, at::kLong)};
  samples_.fill({.indices = indices,
                 .data = example.data.unsqueeze(0),
                 .target = example.target.unsqueeze(0)});
  return example;
}

std::optional<std::size_t> ImageDataset::size() const { return samples_.size(); }

IdxDataset::IdxDataset(const std::filesystem::path& directory, bool train,
                       std::optional<int> classes)
    : ImageDataset(read_dataset(find_idx_dataset(directory, train), classes)) {}

IdxDataset::IdxDataset(const IdxFiles& files, std::optional<int> classes)
    : ImageDataset(read_dataset(files, classes)) {}

Cifar10Dataset::Cifar10Dataset(const std::filesystem::path& directory, bool train)
    : ImageDataset(to_dataset(datasets::read_cifar10(find_dataset(
          directory, cifar10_files(train), unpacking_of("cifar-10-binary.tar.gz"))))) {}

Cifar100Dataset::Cifar100Dataset(const std::filesystem::path& directory, bool train)
    : ImageDataset(to_dataset(datasets::read_cifar100(
          find_dataset(directory, {.names = {train ? "train.bin" : "test.bin"}},
                       unpacking_of("cifar-100-binary.tar.gz"))))) {}

}  // namespace lockstep
