// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/cifar.h"

#include <span>
#include <string>
#include <utility>

#include "lockstep/data/input_file.h"

namespace lockstep {
namespace {

constexpr std::size_t image_bytes = cifar_channels * cifar_side * cifar_side;
constexpr std::size_t records_at_once = 256;

// A record is one byte for each label, then the pixels.
struct Label {
  std::vector<std::uint8_t> CifarImages::*values;
  std::uint8_t most;
};

using Labels = std::span<const Label>;

constexpr Label of_cifar10[]{{&CifarImages::labels, 9}};
constexpr Label of_cifar100[]{{&CifarImages::coarse_labels, 19}, {&CifarImages::labels, 99}};

InputFile open(const std::filesystem::path& path, std::size_t record) {
  InputFile file(path);
  if (file.size() == 0 || file.size() % record != 0)
    throw_corrupt(file.name(), file.size() / record * record,
                  "whole records of " + std::to_string(record) + " bytes",
                  std::to_string(file.size() % record) + " bytes at the end");
  if (file.size() / record > most_cifar_images)
    throw_corrupt(file.name(), most_cifar_images * record,
                  "the end of at most " + std::to_string(most_cifar_images) + " records of " +
                      std::to_string(record) + " bytes",
                  "a file of " + std::to_string(file.size()));
  return file;
}

// `bytes` are whole records that start at `offset` in the file.
void append(const InputFile& file, std::uint64_t offset, std::span<const std::uint8_t> bytes,
            Labels labels, CifarImages& images) {
  for (std::size_t at = 0; at < bytes.size(); at += labels.size() + image_bytes) {
    for (std::size_t i = 0; i < labels.size(); ++i) {
      const std::uint8_t value = bytes[at + i];
      if (value > labels[i].most)
        throw_corrupt(file.name(), offset + at + i,
                      "a label of 0 to " + std::to_string(labels[i].most), std::to_string(value));
      (images.*labels[i].values).push_back(value);
    }
    const auto pixels = bytes.subspan(at + labels.size(), image_bytes);
    images.pixels.insert(images.pixels.end(), pixels.begin(), pixels.end());
  }
}

CifarImages read(const std::vector<std::filesystem::path>& paths, Labels labels) {
  const std::size_t record = labels.size() + image_bytes;
  std::vector<InputFile> files;
  std::uint64_t records = 0;
  for (const auto& path : paths) {
    files.push_back(open(path, record));
    records += files.back().size() / record;
  }

  if (!files.empty()) require_memory_for(files.front().name(), records * image_bytes);
  CifarImages images;
  images.pixels.reserve(records * image_bytes);
  for (const Label& label : labels) (images.*label.values).reserve(records);
  std::vector<std::uint8_t> buffer(record * records_at_once);
  for (InputFile& file : files) {
    for (std::uint64_t offset = 0; offset < file.size();) {
      const std::size_t got = file.read(buffer);
      if (got == 0 || got % record != 0)
        throw_corrupt(file.name(), offset + got, "as many bytes as there were at first", "the end");
      append(file, offset, std::span(buffer).first(got), labels, images);
      offset += got;
    }
  }
  return images;
}

}  // namespace

CifarImages read_cifar10(const std::vector<std::filesystem::path>& files) {
  return read(files, of_cifar10);
}

CifarImages read_cifar100(const std::vector<std::filesystem::path>& files) {
  return read(files, of_cifar100);
}

}  // namespace lockstep
