// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/idx.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/data/gzip_file.h"
#include "lockstep/data/input_file.h"

namespace lockstep {
namespace {

// The file format, http://yann.lecun.com/exdb/mnist: two zero bytes, the element type, the number
// of dimensions, then each dimension in four bytes, the most significant first.
constexpr std::size_t magic_size = 4;
constexpr std::size_t dimension_size = 4;
constexpr std::uint8_t unsigned_byte = 0x08;
constexpr std::array<std::uint8_t, 5> other_types{0x09, 0x0b, 0x0c, 0x0d, 0x0e};
constexpr std::uint8_t most_dimensions = 8;  // Our own limit.

// Bytes read at a time. A packed file that claims a thousand times its size thus takes only the
// memory that it really unpacks to.
constexpr std::size_t step = 1 << 20;

bool can_hold(const InputFile& file, std::uint64_t size) { return file.size() == size; }
bool can_hold(const GzipFile& file, std::uint64_t size) { return file.can_hold(size); }

std::string stated_size(const InputFile& file) { return std::to_string(file.size()); }
std::string stated_size(const GzipFile& file) {
  return std::to_string(file.stated_size()) + " in its gzip trailer";
}

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
                  std::to_string(magic[0]) + " and " + std::to_string(magic[1]));
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

// Total bytes of the header and all values.
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

}  // namespace

IdxArray read_idx(const std::filesystem::path& path) {
  InputFile file(path);
  if (!is_gzip(file)) return read_array(file);
  GzipFile unpacked(std::move(file));
  return read_array(unpacked);
}

}  // namespace lockstep
