// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/image_files.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_format.h"
#include "lockstep/toolkit/datasets/input_file.h"
#include "lockstep/toolkit/datasets/mapped_file.h"

namespace lockstep::datasets {
namespace {

// --- IDX -----------------------------------------------------------------------------------------

// The format (http://yann.lecun.com/exdb/mnist): two zero bytes, the element type, the number of
// dimensions, then each in four bytes, big-endian.
constexpr std::size_t magic_size = 4;
constexpr std::size_t dimension_size = 4;
constexpr std::uint8_t unsigned_byte = 0x08;
constexpr std::array<std::uint8_t, 5> other_types{0x09, 0x0b, 0x0c, 0x0d, 0x0e};
constexpr std::uint8_t most_dimensions = 8;  // Our own limit.

// Bytes per read: a false size in a compressed file costs no memory.
constexpr std::size_t step = 1 << 20;

bool can_hold(const InputFile& file, std::uint64_t size) { return file.size() == size; }
bool can_hold(const GzipFile& file, std::uint64_t size) { return file.can_hold(size); }

std::string stated_size(const InputFile& file) { return std::to_string(file.size()); }
std::string stated_size(const GzipFile& file) {
  return std::to_string(file.stated_size()) + " in its gzip trailer";
}

// `otherwise`: the text for an unknown format.
std::string found_in(const InputFile& file, std::string otherwise) {
  if (file.size() == 0) return "an empty file";
  const auto format = file_format_of(MappedFile(file.name()).bytes());
  return format ? describe(*format) : otherwise;
}
std::string found_in(const GzipFile&, std::string otherwise) { return otherwise; }

template <class File>
void read_exactly(File& file, std::uint64_t offset, std::span<std::uint8_t> out) {
  const std::size_t got = file.read(out);
  if (got == out.size()) return;
  throw_corrupt(file.name(), offset + got, std::to_string(out.size() - got) + " more bytes",
                "the end of the file");
}

template <class File>
std::uint8_t read_dimension_count(File& file) {
  std::array<std::uint8_t, magic_size> magic{};
  read_exactly(file, 0, magic);
  if (magic[0] != 0 || magic[1] != 0)
    throw_corrupt(file.name(), 0, "the two zero bytes of an IDX file",
                  found_in(file, std::to_string(magic[0]) + " and " + std::to_string(magic[1])));
  if (std::ranges::count(other_types, magic[2]) != 0)
    throw Error(Fault::unsupported, file.name() + ": byte 2: the elements are of type " +
                                        std::to_string(magic[2]) +
                                        ", only 8, unsigned bytes, can be read");
  if (magic[2] != unsigned_byte)
    throw_corrupt(file.name(), 2, "an element type", std::to_string(magic[2]));
  if (magic[3] == 0 || magic[3] > most_dimensions)
    throw_corrupt(file.name(), 3, "1 to 8 dimensions", std::to_string(magic[3]));
  return magic[3];
}

template <class File>
std::vector<std::uint32_t> read_shape(File& file) {
  std::vector<std::uint32_t> shape(read_dimension_count(file));
  for (std::size_t i = 0; i < shape.size(); ++i) {
    std::array<std::uint8_t, dimension_size> bytes{};
    read_exactly(file, magic_size + i * dimension_size, bytes);
    for (const std::uint8_t byte : bytes) shape[i] = shape[i] << 8 | byte;
  }
  return shape;
}

template <class File>
std::uint64_t claimed_size(const File& file, std::span<const std::uint32_t> shape) {
  const std::uint64_t header = magic_size + shape.size() * dimension_size;
  std::uint64_t values = 1;
  std::uint64_t total = 0;
  for (const std::uint32_t dimension : shape)
    if (__builtin_mul_overflow(values, dimension, &values))
      throw_corrupt(file.name(), magic_size, "dimensions whose product fits 64 bits",
                    "larger ones");
  if (__builtin_add_overflow(values, header, &total) || !can_hold(file, total))
    throw_corrupt(file.name(), magic_size,
                  "dimensions that fit the size of the file, " + stated_size(file),
                  std::to_string(values) + " values");
  return total;
}

template <class File>
IdxArray read_array(File& file) {
  IdxArray array{.shape = read_shape(file), .values = {}};
  const std::uint64_t total = claimed_size(file, array.shape);
  const std::uint64_t header = magic_size + array.shape.size() * dimension_size;

  require_memory_for(file.name(), total - header);
  auto& values = array.values;
  values.reserve(total - header);
  for (std::uint64_t at = header; at < total; at = header + values.size()) {
    values.resize(values.size() + std::min<std::size_t>(step, total - at));
    read_exactly(file, at, std::span(values).subspan(at - header));
  }

  std::array<std::uint8_t, 1> surplus{};
  if (file.read(surplus) != 0)
    throw_corrupt(file.name(), total, "the end of the data", "more bytes");
  return array;
}

// --- CIFAR ---------------------------------------------------------------------------------------

constexpr std::size_t image_bytes = cifar_channels * cifar_side * cifar_side;
constexpr std::size_t records_at_once = 256;

// One byte per label, then the pixels.
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
                  found_in(file, std::to_string(file.size() % record) + " bytes at the end"));
  if (file.size() / record > most_cifar_images)
    throw_corrupt(file.name(), most_cifar_images * record,
                  "the end of at most " + std::to_string(most_cifar_images) + " records of " +
                      std::to_string(record) + " bytes",
                  "a file of " + std::to_string(file.size()));
  return file;
}

// `bytes`: whole records from `offset` in the file.
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

IdxArray read_idx(const std::filesystem::path& path) {
  InputFile file(path);
  if (!is_gzip(file)) return read_array(file);
  GzipFile unpacked(std::move(file));
  return read_array(unpacked);
}

CifarImages read_cifar10(const std::vector<std::filesystem::path>& files) {
  return read(files, of_cifar10);
}

CifarImages read_cifar100(const std::vector<std::filesystem::path>& files) {
  return read(files, of_cifar100);
}

}  // namespace lockstep::datasets
